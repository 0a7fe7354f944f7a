"""The folder of an export's intermediate results: a temporary one, or one that an interrupted export goes on from."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge import texts
from edge.files import remove_tree

_KEY = "key.json"


def place(destination: Path) -> Path:
    """Where the results for a bundle stay when its export is interrupted."""
    return destination.with_name(f".{destination.name}.resume")


@dataclass(frozen=True, slots=True)
class Work:
    """A folder for intermediate results; `stays` is whether an interrupted export leaves it."""

    path: Path
    stays: bool


@contextlib.contextmanager
def folder(inside: Path, resumable: Path | None, key: Mapping[str, Any]) -> Iterator[Work]:
    """A folder for intermediate results: a temporary one in `inside`, or `resumable`, which stays.

    `key` is what the results depend on: those that another key belongs to are removed. Whoever has published the
    bundle removes `resumable`.
    """
    if resumable is None:
        with tempfile.TemporaryDirectory(dir=inside, prefix=".work") as found:
            yield Work(Path(found), stays=False)
        return
    told = json.dumps(key, sort_keys=True, default=str)
    if resumable.exists() and _key(resumable) != told:
        remove_tree(resumable)
    resumable.mkdir(exist_ok=True)
    (resumable / _KEY).write_text(told, encoding="utf-8", newline="\n")
    yield Work(resumable, stays=True)


def _key(path: Path) -> str | None:
    try:
        return texts.read(path / _KEY)
    except (OSError, ValueError):
        return None
