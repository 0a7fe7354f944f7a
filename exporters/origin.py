"""Where a checkpoint comes from, as far as it tells: what the manifest says of its bundle's origin."""

from __future__ import annotations

import re
from pathlib import Path

from edge import texts
from edge.contents import Origin
from edge.sums import sha256
from exporters.checkpoint import Checkpoint

_COMMIT = re.compile(r"[0-9a-f]{40}")
# `license:` in the YAML block at the head of a model card.
_CARD_LICENSE = re.compile(r"^license:\s*[\"']?([^\s\"'#]{1,100})", re.MULTILINE)
_CARD_LIMIT = 1 << 20


def find_origin(checkpoint: Checkpoint) -> Origin:
    """The name, revision and license of a checkpoint and the SHA-256 of each file that holds its tensors.

    Reads those files once. A revision is known of a folder of the hub's cache, and of one that its client filled.
    """
    path = Path(checkpoint.path).absolute()
    folder = path if path.is_dir() else path.parent
    stated = checkpoint.license or (_card_license(folder) if path.is_dir() else None)
    files = {file.absolute().relative_to(folder).as_posix(): sha256(file) for file in checkpoint.files}
    return Origin(path.name, _revision(folder, path), stated, files)


def _revision(folder: Path, path: Path) -> str | None:
    if folder.parent.name == "snapshots" and _COMMIT.fullmatch(folder.name):
        return folder.name
    name = path.name if path.is_file() else "config.json"
    noted = folder / ".cache" / "huggingface" / "download" / f"{name}.metadata"
    try:
        first = texts.read_system(noted).partition("\n")[0].strip()
    except OSError:
        return None
    return first if _COMMIT.fullmatch(first) else None


def _card_license(folder: Path) -> str | None:
    """The license that the model card of a folder names."""
    try:
        with open(folder / "README.md", encoding="utf-8", errors="replace") as file:
            text = file.read(_CARD_LIMIT)
    except OSError:
        return None
    if not text.startswith("---"):
        return None
    found = _CARD_LICENSE.search(text[3:].partition("\n---")[0])
    return found[1] if found else None
