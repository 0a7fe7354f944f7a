"""From a cold process to the first token, and what `import edge` costs.

    python -m benchmarks.startup [BUNDLE]

Every figure is a median over fresh processes, after one that is not counted, so that files are in the page cache and
their sums known. The bars: 1.5 s to the first token, 0.25 s for `import edge` alone, and 5 s for a whole answer of
`dsedge run`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from benchmarks import models, tables

_T = TypeVar("_T")
PROMPT = "What is the capital of France?"
_HEAVY = ("numpy", "tokenizers", "jinja2", "onnxruntime", "onnx", "torch", "coremltools", "typer", "rich")
# Imports to measure by themselves: a row's name → the code.
_IMPORTS = {
    "import edge": "import edge",
    "import edge, and all that edge.load needs": "import edge; edge.load",
}


def main() -> int:
    options = _parser().parse_args()
    machine = tables.machine()
    bundle: Path = (options.bundle or models.default_bundle(models.DEFAULT_RECIPE)).resolve()
    found = [_starts(bundle, options.runs), _stages(bundle, options.runs), _imports(options.runs, (machine,))]
    tables.show(found, markdown=options.markdown)
    return 0


def _starts(bundle: Path, runs: int) -> tables.Table:
    """`dsedge run` as a user starts it."""
    line = [sys.executable, "-m", "edge.cli", "run", str(bundle), PROMPT]
    first, whole = zip(*_repeat(runs, lambda: _answer(line)), strict=True)
    rows = (
        ("`dsedge run`: first text on stdout", _ms(first), "1500"),
        ("`dsedge run`: whole answer, process gone", _ms(whole), "5000"),
    )
    return tables.Table(f"Cold process, medians of {runs}", ("", "ms", "bar"), rows)


def _answer(line: Sequence[str]) -> tuple[float, float]:
    """Seconds until a command writes the first byte to stdout, and until it has ended."""
    start = time.monotonic()
    with subprocess.Popen(
        line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, bufsize=0, cwd=models.ROOT
    ) as process:
        assert process.stdout
        if not process.stdout.read(1):
            raise SystemExit("dsedge wrote nothing to stdout; the reason is above")
        first = time.monotonic() - start
        process.stdout.read()
    return first, time.monotonic() - start


def _stages(bundle: Path, runs: int) -> tables.Table:
    """The same way in the library, stage by stage."""

    def run() -> dict[str, float]:
        line = [sys.executable, "-m", "benchmarks.workers.cold", str(bundle), PROMPT, str(time.monotonic())]
        found: dict[str, float] = json.loads(models.output_of(line))
        return found

    found = _repeat(runs, run)
    rows = tuple((stage, _ms([stages[stage] for stages in found])) for stage in found[0])
    return tables.Table(f"The library, stage by stage, medians of {runs}", ("", "ms"), rows)


def _imports(runs: int, notes: tuple[str, ...]) -> tables.Table:
    python = _repeat(runs, lambda: _python("pass"))
    rows = [("python -c pass", "", _ms([wall for wall, _, _ in python]), "", "")]
    for name, code in _IMPORTS.items():
        found = _repeat(runs, lambda code=code: _python(code))  # type: ignore[misc]
        names = found[0][2]
        heavy = ", ".join(module for module in _HEAVY if module in names)
        inside, wall = _ms([inner for _, inner, _ in found]), _ms([wall for wall, _, _ in found])
        rows.append((name, inside, wall, str(len(names)), heavy or "none"))
    head = ("", "import ms", "process ms", "modules", "of them large")
    return tables.Table(f"Imports, medians of {runs}; the bar is 250 ms", head, tuple(rows), notes)


def _python(code: str) -> tuple[float, float, set[str]]:
    """Wall seconds of a fresh interpreter that runs `code`, the seconds of the code itself, and what it imported."""
    script = (
        "import sys, time; before = set(sys.modules); start = time.monotonic()\n"
        f"{code}\n"
        "print(time.monotonic() - start, *sorted(set(sys.modules) - before))"
    )
    start = time.monotonic()
    output = models.output_of([sys.executable, "-c", script])
    wall = time.monotonic() - start
    inner, *names = output.split()
    return wall, float(inner), set(names)


def _repeat(runs: int, run: Callable[[], _T]) -> list[_T]:
    """The results of `runs` calls, after one that is left out."""
    return [run() for _ in range(runs + 1)][1:]


def _ms(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds) * 1000:.0f}"


def _parser() -> argparse.ArgumentParser:
    parser = tables.parser(__doc__)
    parser.add_argument("bundle", metavar="BUNDLE", nargs="?", type=Path, help="a bundle's folder [the default model]")
    parser.add_argument("--runs", type=int, default=7, help="fresh processes for each figure [7]")
    return parser


if __name__ == "__main__":
    sys.exit(main())
