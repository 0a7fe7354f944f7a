"""What each step of quantizing is worth: KL divergence and perplexity of a model under one method after another.

    python -m benchmarks.quality                                   the default model
    python -m benchmarks.quality --source SOURCE --name NAME       another checkpoint
    python -m benchmarks.quality --planted                         Qwen2's shape, with large channels in its keys
    python -m benchmarks.quality --row rounding --row feedback     some rows alone
    python -m benchmarks.quality --tokens 8192 --chunks 4          on less text: a fraction of the time

A row is an export, and the text, chunks and measures are those of benchmarks.fidelity: the source in float32 against
the bundle's own weights in the reference interpreter, and against the native engine with a float16 and an int8 cache.
Rows take minutes to hours, so each is kept in `build/benchmarks/quality/` once it is measured. A row that is there is
not measured again (remove its file for that); benchmarks/quality.md is written from all rows that are there. Rows
that were made on different amounts of text are not to be compared; the page tells both.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import edge
from benchmarks import fidelity, models, planted, tables
from edge import payload
from edge.bundle import Bundle
from edge.options import RuntimeOptions
from edge.runtime import kept_kv, support
from exporters.calibration import EFFORTS
from exporters.checkpoint.open import open_checkpoint
from exporters.quant import gptq, method
from exporters.quant.method import Parts, Rows, Statistics

FOLDER = models.FOLDER / "quality"
PAGE = Path(__file__).parent / "quality.md"
_HEAD = (
    "", "bits a weight", "mean KL", "99% KL", "top-1 same", "perplexity (over the source's)", "native engine",
    "int8 cache", "int8 layers", "calibrated on", "measured on", "minutes",
)  # fmt: skip
_NARROW = "int4-g32-sym"


@dataclass(frozen=True, slots=True)
class Row:
    """An export: the scheme of the layers, that of embedding and head, and its options."""

    scheme: str = _NARROW
    outer: str = "int8-g32-sym"
    method: str | None = None
    options: Mapping[str, Any] | None = None

    def recipe(self) -> str:
        named = f'\nmethod = "{self.method}"' if self.method else ""
        outer = '\nmethod = "nearest"' if self.outer.startswith("int8") else named
        return (
            f'name = "quality"\n[[rule]]\nmatch = ["embed", "head"]\nscheme = "{self.outer}"{outer}\n'
            f'[[rule]]\nmatch = "*.router"\nscheme = "float16"\n'
            f'[[rule]]\nmatch = "*"\nscheme = "{self.scheme}"{named}\n'
        )


_NONE, _MEDIUM = {"effort": "none"}, {"effort": "medium"}
ROWS: dict[str, Row] = {
    "rounding": Row(options=_NONE),
    "rounding, keys equalized": Row(method="nearest", options=_MEDIUM),
    "clipping": Row(method="clipping", options=_MEDIUM),
    "feedback": Row(method="gptq", options=_MEDIUM),
    "feedback within heads": Row(options=_MEDIUM),
    "the same, own text": Row(options={**_MEDIUM, "calibration": "self"}),
    "the same, zp": Row("int4-g32-zp", options=_MEDIUM),
    "the same, affine": Row("int4-g32-affine", options=_MEDIUM),
    "the same, groups of 64": Row("int4-g64-sym", options=_MEDIUM),
    "the same, groups of 128": Row("int4-g128-sym", options=_MEDIUM),
    "rounding, int4 everywhere": Row(outer=_NARROW, options=_NONE),
    "feedback within heads, int4 everywhere": Row(outer=_NARROW, options=_MEDIUM),
    "the same, 4.6 bits by head": Row(outer=_NARROW, options={**_MEDIUM, "bits": 4.6}),
    "distilled": Row(options={"effort": "high"}),
    "distilled, 4.6 bits by head": Row(outer=_NARROW, options={"effort": "high", "bits": 4.6}),
}


@dataclass(frozen=True, slots=True)
class Figures:
    """What a row came to; None where the native engine is not there.

    `int8_layers` is how many layers the engine keeps in int8 where that is asked for, of all; `calibrated` and
    `measured` count tokens. None in rows that were kept before these were.
    """

    bits: float
    mean_kl: float
    p99_kl: float
    top1: float
    perplexity: float
    source_perplexity: float
    native_kl: float | None
    int8_kl: float | None
    minutes: float
    int8_layers: str | None = None
    calibrated: int | None = None
    measured: int | None = None


def main() -> int:
    options = _parser().parse_args()
    method.METHODS["clipping"] = __name__ + ".clipping"
    sys.modules[__name__ + ".clipping"] = _clipping()
    if options.tokens:
        for effort, found in EFFORTS.items():
            EFFORTS[effort] = replace(found, tokens=options.tokens)
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as scratch:
        source = options.source or models.default_source()
        name = options.name or ("SmolLM2-135M-Instruct" if options.source is None else source.stem)
        if options.planted:
            source, name = (
                planted.write(source, Path(scratch) / "planted"),
                f"{name} as Qwen2 with large channels planted",
            )
        for label in options.row or ROWS:
            path = FOLDER / f"{name}, {label}.json"
            if not path.exists():
                print(f"{name}: {label}", file=sys.stderr)
                figures = measure(source, ROWS[label], Path(scratch), options.chunks)
                path.write_text(json.dumps(asdict(figures), indent=1), encoding="utf-8")
            PAGE.write_text(page(FOLDER, tables.machine()), encoding="utf-8")
    return 0


def measure(source: Path, row: Row, scratch: Path, chunks: int | None = None) -> Figures:
    """Export a row's bundle and compare it with its source, on so many chunks. Raises what exporting raises."""
    recipe, out = scratch / "recipe.toml", scratch / "row.dsedge"
    recipe.write_text(row.recipe(), encoding="utf-8")
    since = time.perf_counter()
    bundle = edge.export(source, out, recipe=recipe, targets=(), **dict(row.options or {}))
    minutes = (time.perf_counter() - since) / 60
    compared: dict[str, tuple[int, fidelity.Model]] = {
        "weights": (0, fidelity.reference_model(bundle.graph, bundle.weights.read))
    }
    layers = None
    if support("native").devices:
        kept = kept_kv(bundle, RuntimeOptions(runtime="native", kv_dtype="int8"))[1]
        layers = f"{kept.count('int8')} of {len(kept)}"
        for cache in ("float16", "int8"):
            compared[cache] = 0, fidelity.bundle_model(bundle, "native", exact=False, kv_dtype=cache)
    with contextlib.closing(open_checkpoint(source)) as checkpoint:
        parts = fidelity.chunks(bundle)[:chunks]
        found, own = fidelity.measure(fidelity.source_model(checkpoint), compared, parts)
    weights = found["weights"]
    native, int8 = (found[cache].mean_kl if cache in found else None for cache in ("float16", "int8"))
    figures = weights.mean_kl, weights.p99_kl, weights.top1, weights.perplexity
    calibrated = bundle.manifest.recipe.get("calibration", {}).get("tokens", 0)
    return Figures(_bits(bundle), *figures, own, native, int8, minutes, layers, calibrated, sum(map(len, parts)))


def _bits(bundle: Bundle) -> float:
    matrices = [weight for weight in bundle.graph.weights if weight.is_matrix]
    stored = sum(bundle.weights.size(run.name) for weight in matrices for run in bundle.weights.runs[weight.name])
    return 8 * stored / sum(weight.size for weight in matrices)


def page(folder: Path, machine: str) -> str:
    """All rows that are there, a table for each model."""
    found: dict[str, dict[str, Figures]] = {}
    for path in sorted(folder.glob("*.json")):
        name, _, label = path.stem.partition(", ")
        found.setdefault(name, {})[label] = Figures(**json.loads(path.read_text(encoding="utf-8")))
    made = []
    for name, rows in found.items():
        ordered = [label for label in ROWS if label in rows]
        made.append(tables.Table(name, _HEAD, tuple(_cells(label, rows[label]) for label in ordered)))
    head = "# Quality\n\nWritten by `python -m benchmarks.quality`, which says how it is measured; do not edit.\n\n"
    return head + "\n\n".join(table.render(markdown=True) for table in made) + f"\n\n{machine}\n"


def _cells(label: str, row: Figures) -> tuple[str, ...]:
    over = row.perplexity / row.source_perplexity - 1
    return (
        label, f"{row.bits:.2f}", f"{row.mean_kl:.4f}", f"{row.p99_kl:.3f}", f"{row.top1:.1%}",
        f"{row.perplexity:.2f} ({over:+.1%})", _figure(row.native_kl), _figure(row.int8_kl), row.int8_layers or "",
        _count(row.calibrated), _count(row.measured), f"{row.minutes:.1f}",
    )  # fmt: skip


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _clipping() -> ModuleType:
    """The grid of feedback without feedback: scales by what an error costs column by column, codes the nearest."""
    module: Any = ModuleType("clipping")
    module.NEEDS = gptq.NEEDS

    def quantize(weight: Rows, scheme: payload.Scheme, statistics: Statistics | None) -> Parts:
        assert statistics is not None
        assert statistics.moment is not None
        alone = Statistics(statistics.tokens, moment=np.diag(np.diagonal(statistics.moment)))
        return gptq.quantize(weight, scheme, alone)

    module.quantize = quantize
    found: ModuleType = module
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, help="the checkpoint [the default model's]")
    parser.add_argument("--name", help="what the model is called in the table [the checkpoint's]")
    parser.add_argument("--planted", action="store_true", help="as a Qwen2 with large channels in its keys")
    parser.add_argument("--tokens", type=int, help="of text for calibration at most [what an export takes]")
    parser.add_argument("--chunks", type=int, help="of text that is measured on [8, or 4 of a large vocabulary]")
    parser.add_argument("--row", action="append", choices=list(ROWS), help="measure this row; repeatable [all]")
    return parser


if __name__ == "__main__":
    sys.exit(main())
