"""What was measured on this machine and is worth knowing again: a small JSON file in the user's cache, safe to delete.

An entry has a kind, such as `chunk`, and a key that names everything it depends on. What cannot be written is known
until the process ends.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from edge import texts
from edge.errors import EdgeError
from edge.files import write_whole
from edge.paths import cache_folder

_MOST = 256  # entries of a kind: the oldest go
_known: dict[tuple[str, str], Any] = {}


def path() -> Path:
    """The file; it need not exist."""
    return cache_folder() / "measured.json"


def entries(kind: str) -> dict[str, Any]:
    """All entries of a kind, the oldest first."""
    here = {key: value for (other, key), value in _known.items() if other == kind}
    return {**_read().get(kind, {}), **here}


def recall(kind: str, key: str) -> Any:
    """What was remembered, or None."""
    return entries(kind).get(key)


def remember(kind: str, key: str, value: Any) -> None:
    """Keep a value of JSON."""
    _known[kind, key] = value
    found = _read()
    kept = {name: item for name, item in found.get(kind, {}).items() if name != key}
    found[kind] = dict([*kept.items(), (key, value)][-_MOST:])
    with contextlib.suppress(OSError, EdgeError):  # a cache that cannot be written to costs measuring again
        path().parent.mkdir(parents=True, exist_ok=True)
        write_whole(path(), json.dumps(found, indent=1))


def _read() -> dict[str, Any]:
    """What the file says; nothing where there is none, or one that somebody has damaged."""
    try:
        found = texts.read_json(path())
    except (OSError, ValueError, EdgeError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {kind: table for kind, table in found.items() if isinstance(table, dict)}
