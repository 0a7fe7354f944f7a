"""The models that the benchmarks measure (the default model's source, and bundles of it by recipe), and processes.

Source and bundles are made once. Bundles lie in `build/benchmarks/` of the clone, and are made anew when the code that
writes them is newer than they are.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import edge
from edge.catalog import find, load_catalog
from edge.download import fetch

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "benchmarks"
DEFAULT_RECIPE = "sub1b"
EQUAL_BITS = "int4-g32-sym"
_CODE = ("edge", "exporters")


def default_source() -> Path:
    """The default model's GGUF file, from the cache or downloaded. Raises what `edge.download.fetch` raises."""
    return fetch(find(load_catalog().default), _tell)


def default_bundle(recipe: str) -> Path:
    """The default model's bundle under a shipped recipe. Raises what exporting raises."""
    path = FOLDER / f"{recipe}.dsedge"
    manifest = path / "manifest.json"
    if not manifest.is_file() or manifest.stat().st_mtime < _changed():
        FOLDER.mkdir(parents=True, exist_ok=True)
        _tell(f"export {path}", 0.0)
        edge.export(default_source(), path, recipe=recipe)
    return path


def output_of(line: Sequence[str]) -> str:
    """What a command writes to stdout, run from the clone's root. Ends the program if it fails; stderr says why."""
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(line[:3])} … ended with exit code {done.returncode}; the reason is above")
    return done.stdout


def _changed() -> float:
    """When the exporter's code or data last changed."""
    files = (file for folder in _CODE for file in (ROOT / folder).rglob("*") if file.suffix in (".py", ".toml"))
    return max(file.stat().st_mtime for file in files)


def _tell(stage: str, share: float) -> None:
    if share == 0.0:
        print(stage, file=sys.stderr)
