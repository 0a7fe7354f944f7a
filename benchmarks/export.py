"""How long an export takes, and the most memory that it needs.

    python -m benchmarks.export                                 the default model, from its GGUF file
    python -m benchmarks.export --layers 7 --layers 28          Qwen2.5-7B's shape, with so many of its layers
    python -m benchmarks.export --effort medium --layers 1 --layers 2 --tokens 8192   calibrated

Each export runs in a fresh process; the peak is what that process has had resident at most. The form with layers writes
checkpoints of random numbers (15 GB at 28 layers, and 5 GB for the bundle) below `--scratch`, and removes them
afterwards. Memory must grow with the largest tensor and not with the model: the last column tells the most so far at
each quarter of the payload. The bars: 20 s for the default model, 3 GiB for a 7B one, 6 GiB where it is calibrated.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import models, synthetic, tables

_GIB = 1 << 30
_SPARE = 1.5  # of a checkpoint's size: itself, its bundle, and some room


@dataclass(frozen=True, slots=True)
class Exported:
    """One export: seconds in all and by stage, most bytes of memory (None: the system does not tell), bundle bytes;
    `peaks` are the most bytes so far while the payload was written."""

    seconds: float
    stages: dict[str, float]
    peak_bytes: int | None
    peaks: list[int | None]
    bundle_bytes: int


def main() -> int:
    options = _parser().parse_args()
    machine = tables.machine()
    with tempfile.TemporaryDirectory(dir=options.scratch, prefix="dsedge-export-") as scratch:
        rows = _large(options, Path(scratch)) if options.layers else _small(options, Path(scratch))
    head = ("", "parameters", "seconds", "quantize s", "check s", "peak GiB", "bundle MB", "peaks GiB")
    tables.show([tables.Table("Export", head, rows, (machine,))], markdown=options.markdown)
    return 0


def _small(options: argparse.Namespace, scratch: Path) -> tuple[tuple[str, ...], ...]:
    """The medians of a few exports of one source, for each recipe."""
    source: Path = options.source or models.default_source()
    rows = []
    for recipe in options.recipe or [models.DEFAULT_RECIPE, models.EQUAL_BITS]:
        runs = [run(source, scratch / f"{recipe}.dsedge", recipe, options) for _ in range(options.runs)]
        middle = sorted(runs, key=lambda found: found.seconds)[len(runs) // 2]
        rows.append(_row(f"{source.name}, recipe {recipe}, median of {len(runs)}", "", middle))
    return tuple(rows)


def _large(options: argparse.Namespace, scratch: Path) -> tuple[tuple[str, ...], ...]:
    rows = []
    for count in options.layers:
        needed, free = int(synthetic.size(count) * _SPARE), shutil.disk_usage(scratch).free
        if free < needed:
            raise SystemExit(f"{scratch}: {needed / 1e9:.0f} GB are needed and {free / 1e9:.0f} free; see --scratch")
        source, out = scratch / "source", scratch / "large.dsedge"
        source.mkdir()
        print(f"writing {synthetic.size(count) / 1e9:.1f} GB to {source}", file=sys.stderr)
        parameters = synthetic.write(source, count)
        found = run(source, out, "", options)
        rows.append(_row(f"7B shape, {count} layers", f"{parameters / 1e9:.2f}e9", found))
        shutil.rmtree(source)
        shutil.rmtree(out)
    return tuple(rows)


def run(source: Path, out: Path, recipe: str, options: argparse.Namespace) -> Exported:
    """Export once in a fresh process."""
    line = [sys.executable, "-m", "benchmarks.workers.export", str(source.resolve()), str(out.resolve())]
    found: dict[str, Any] = json.loads(models.output_of([*line, recipe, options.effort, str(options.tokens)]))
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    return Exported(**found, bundle_bytes=size)


def _row(name: str, parameters: str, found: Exported) -> tuple[str, ...]:
    peak = "unknown" if found.peak_bytes is None else f"{found.peak_bytes / _GIB:.2f}"
    stages = (
        f"{found.stages.get(stage, 0.0):.1f}"
        for stage in ("calibrate" if "calibrate" in found.stages else "quantize", "check")
    )
    quarters = [found.peaks[min(len(found.peaks) - 1, quarter * len(found.peaks) // 4)] for quarter in range(1, 5)]
    so_far = " ".join("?" if most is None else f"{most / _GIB:.2f}" for most in quarters)
    return name, parameters, f"{found.seconds:.1f}", *stages, peak, f"{found.bundle_bytes / 1e6:.1f}", so_far


def _parser() -> argparse.ArgumentParser:
    parser = tables.parser(__doc__)
    parser.add_argument("--source", type=Path, help="a checkpoint [the default model's GGUF file]")
    parser.add_argument("--recipe", action="append", help="a recipe; repeatable [sub1b and int4-g32-sym]")
    parser.add_argument("--runs", type=int, default=3, help="exports of each recipe [3]")
    parser.add_argument(
        "--layers", type=int, action="append", help="export the 7B shape with so many layers; repeatable"
    )
    parser.add_argument("--effort", default="none", help="none, medium or high [none]")
    parser.add_argument("--tokens", type=int, default=0, help="of text for calibration at most [what an export takes]")
    parser.add_argument("--scratch", type=Path, help="a folder for what is written [the system's temporary one]")
    return parser


if __name__ == "__main__":
    sys.exit(main())
