"""Core ML packages without a Mac: export time and memory, sizes, parity by the interpreter, and planted faults.

    python -m benchmarks.coreml --gemma GEMMA.gguf --large

Parity is the interpreter's against the reference: exact, with the weights that the package holds (largest difference
of a logit), and in float16 with the bundle's own weights (mean KL, same top token). Greedy: the reference's own 64
tokens on three prompts, put through the package in float16; where another token comes first, how far apart the
reference's two logits are. Seeded models are tiny, one of each family. `--large` adds Qwen2.5-7B's shape with random
codes, which needs 9 GB of disk below `--scratch`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import edge
from benchmarks import active_bytes, models, tables
from edge.bundle import WEIGHTS, Bundle, write_manifest
from edge.coreml_interface import PACKAGE
from edge.decoder import DecoderSpec, RopeSpec
from edge.errors import BundleError
from edge.layers import Dense, Gqa, LayerSpec
from edge.tokenizer import open_tokenizer
from exporters import parity
from exporters.reference import Reference

_GIB, _MB = 1 << 30, 1e6
_PROMPTS = (
    "What is the capital of France?",
    "Write a short story about a lighthouse keeper and the sea.",
    "def fibonacci(n):",
)
_NEW = 64
_FAMILIES = (
    "llama", "qwen2", "qwen3", "mistral", "ministral", "gemma", "gemma2", "gemma3", "phi3", "smollm3", "olmo2", "olmo3",
    "granite", "granitemoe", "olmoe", "qwen3_moe", "deepseek_v2", "deepseek_v3",
)  # fmt: skip
Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Greedy:
    """Of `tokens` greedy tokens, how many come first in the package too, and the widest gap where another does."""

    tokens: int
    same: int
    gap: float

    def __str__(self) -> str:
        return f"{self.same}/{self.tokens}" + (f" (gap {self.gap:.2g})" if self.same < self.tokens else "")


def main() -> int:
    options = _parser().parse_args()
    machine = tables.machine()
    with tempfile.TemporaryDirectory(dir=options.scratch, prefix="dsedge-coreml-") as scratch:
        made = list(_real(options, Path(scratch)))
        exported = [_export_row(name, bundle) for name, bundle in made]
        if options.large:
            exported.append(_large(Path(scratch)))
        compared = [_parity_row(name, bundle, greedy(bundle)) for name, bundle in made]
        compared += [_parity_row(f"{family}, seeded", _seeded(family, Path(scratch)), None) for family in _FAMILIES]
        faults = _faults(Path(scratch))
    sizes = ("", "parameters", "payload MB", "package MB", "write s", "read back s", "peak GiB", "largest tensor GiB")
    logits = ("", "logits' deviation", "exact: largest difference", "float16: mean KL", "same top token", "greedy")
    found = [
        tables.Table("Core ML export, contexts 512 and 2,048", sizes, tuple(exported), (machine,)),
        tables.Table("Core ML parity, by the interpreter", logits, tuple(compared)),
        tables.Table("Planted faults", ("", "found"), tuple(faults)),
    ]
    tables.show(found, markdown=options.markdown)
    return 0


def _real(options: argparse.Namespace, scratch: Path) -> Iterator[tuple[str, Bundle]]:
    """Real models, exported with their packages."""
    sources = [("SmolLM2-135M-Instruct", models.default_source())]
    if options.gemma is not None:
        sources.append(("Gemma-3-270m", options.gemma))
    for name, source in sources:
        yield name, edge.export(source, scratch / f"{source.stem}.dsedge", targets=("coreml",), effort="none")


def _seeded(family: str, scratch: Path) -> Bundle:
    tiny = importlib.import_module("tests.exporters.tiny")
    source = getattr(tiny, f"tiny_{family}")(scratch / family)
    return edge.export(source, scratch / f"{family}-seeded.dsedge", targets=("coreml",), contexts=(128,))


def _parity_row(name: str, bundle: Bundle, tokens: Greedy | None) -> Row:
    report = bundle.manifest.quality.parity
    assert report is not None
    found = report.runtimes["coreml-interpreter"]
    return (
        name, f"{found.exact.deviation:.2f}", f"{found.exact.max_diff:.1e}", f"{found.used.mean_kl:.1e}",
        f"{found.used.top1:.1%}", "" if tokens is None else str(tokens),
    )  # fmt: skip


def greedy(bundle: Bundle) -> Greedy:
    """The reference's own tokens on the prompts, put through the package in float16."""
    tokenizer, same, gap = open_tokenizer(bundle), 0, 0.0
    for prompt in _PROMPTS:
        ids = tokenizer.encode_prompt(prompt)
        reference = Reference(bundle.graph, bundle.weights.read, context=512)
        logits = [reference.run(ids, last=True)[0]]
        while len(logits) < _NEW:
            logits.append(reference.run([int(logits[-1].argmax())], last=True)[0])
        chosen = [int(row.argmax()) for row in logits]
        found = _package_logits(bundle, ids + chosen[:-1])[len(ids) - 1 :]
        for row, token, theirs in zip(logits, chosen, found.argmax(-1), strict=True):
            same += token == theirs
            gap = max(gap, float(row[token] - row[theirs]))
    return Greedy(len(_PROMPTS) * _NEW, same, gap)


def _package_logits(bundle: Bundle, ids: list[int]) -> np.ndarray[Any, Any]:
    return parity.run_graph(bundle, ids, exact=False, chunk=64, runtime="coreml-interpreter")


def _export_row(name: str, bundle: Bundle) -> Row:
    """Write the package again in a process of its own, and read it back in another."""
    if (bundle.path / PACKAGE).exists():
        shutil.rmtree(bundle.path / PACKAGE)
    written, read = (_run(bundle, step) for step in ("write", "check"))
    package = sum(file.stat().st_size for file in (bundle.path / PACKAGE).rglob("*") if file.is_file())
    largest = max(bundle.weights.size(weight.name) for weight in bundle.graph.weights)
    peak = max(written["peak_bytes"], read["peak_bytes"])
    return (
        name, f"{bundle.graph.parameters / 1e6:.0f}e6", f"{(bundle.path / WEIGHTS).stat().st_size / _MB:.1f}",
        f"{package / _MB:.1f}", f"{written['seconds']:.1f}", f"{read['seconds']:.1f}", f"{peak / _GIB:.2f}",
        f"{largest / _GIB:.2f}",
    )  # fmt: skip


def _run(bundle: Bundle, step: str) -> dict[str, float]:
    line = [sys.executable, "-m", "benchmarks.workers.coreml", str(bundle.path), step]
    found: dict[str, float] = json.loads(models.output_of(line))
    return found


def _large(scratch: Path) -> Row:
    """A payload of random codes in Qwen2.5-7B's shape."""
    folder = scratch / "7b.dsedge"
    folder.mkdir()
    layer = LayerSpec(Gqa(28, 4, 128, 128**-0.5, qkv_bias=True), Dense(18944))
    spec = DecoderSpec("qwen2", 152064, 3584, (layer,) * 28, (RopeSpec(128, 1e6),), 32768, 1e-6)
    bundle = active_bytes.make(folder, spec)
    write_manifest(folder, bundle.manifest)
    return _export_row("Qwen2.5-7B's shape, random codes", bundle)


def _faults(scratch: Path) -> list[Row]:
    """Each fault that the tests plant: whether it is found."""
    planting = importlib.import_module("tests.runtimes.coreml_interpreter.test_check")
    tiny = importlib.import_module("tests.exporters.tiny")
    bundle = edge.export(
        tiny.tiny_llama(scratch / "planted"), scratch / "planted.dsedge", targets=("coreml",), contexts=(128,)
    )
    rows: list[Row] = []
    for plant, _ in planting.FAULTS:
        planted = planting.Planted(bundle, scratch / plant.__name__)
        plant(planted)
        try:
            planted.check()
            rows.append((plant.__name__.replace("_", " "), "no"))
        except BundleError:
            rows.append((plant.__name__.replace("_", " "), "yes"))
    return rows


def _parser() -> argparse.ArgumentParser:
    parser = tables.parser(__doc__)
    parser.add_argument("--gemma", type=Path, help="Gemma-3-270m's GGUF file; its rows are left out without it")
    parser.add_argument("--large", action="store_true", help="add the 7B shape")
    parser.add_argument("--scratch", type=Path, help="a folder for what is written [the system's temporary one]")
    return parser


if __name__ == "__main__":
    sys.exit(main())
