"""The models that the benchmarks measure (the default model's source, and bundles of it by recipe), and processes.

Source and bundles are made once. Bundles lie in `build/benchmarks/` of the clone, and are made anew when the code that
writes them is newer than they are.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import edge
from benchmarks import synthetic
from edge.bundle import MANIFEST
from edge.catalog import find, load_catalog
from edge.download import fetch

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "benchmarks"
DEFAULT_RECIPE = "sub1b"
EQUAL_BITS = "int4-g32-sym"
_CODE = ("edge", "exporters")


def default_source() -> Path:
    """The default model's GGUF file, from the cache or downloaded. Raises what `edge.download.fetch` raises."""
    return fetch(find(load_catalog().default), _tell).path


def default_bundle(recipe: str) -> Path:
    """The default model's bundle under a shipped recipe. Raises what exporting raises."""
    path = FOLDER / f"{recipe}.dsedge"
    if not _current(path):
        _tell(f"export {path}", 0.0)
        edge.export(default_source(), path, recipe=recipe, effort="none")
    return path


def large_bundle() -> Path:
    """A bundle of Qwen2.5-7B's shape, other numbers in every tensor, under the recipe of equal bits.

    Making it takes minutes, and for a while 20 GB of disk. Raises what exporting raises.
    """
    path = FOLDER / "7b-shape.dsedge"
    if not _current(path):
        with tempfile.TemporaryDirectory(dir=FOLDER) as source:
            _tell(f"make {path}", 0.0)
            synthetic.write(Path(source), synthetic.QWEN_7B["num_hidden_layers"])
            edge.export(source, path, recipe=EQUAL_BITS, effort="none")
    return path


def output_of(line: Sequence[str]) -> str:
    """What a command writes to stdout, run from the clone's root. Ends the program if it fails; stderr says why."""
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(line[:3])} … ended with exit code {done.returncode}; the reason is above")
    return done.stdout


def _current(path: Path) -> bool:
    """Whether a bundle is there and newer than the exporter's code and data. The folder for it is there afterwards."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    files = (file for folder in _CODE for file in (ROOT / folder).rglob("*") if file.suffix in (".py", ".toml"))
    manifest = path / MANIFEST
    return manifest.is_file() and manifest.stat().st_mtime >= max(file.stat().st_mtime for file in files)


def _tell(stage: str, share: float, transfer: object = None) -> None:
    if share == 0.0:
        print(stage, file=sys.stderr)
