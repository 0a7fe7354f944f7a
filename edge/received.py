"""What unpinned models turned out to be: a sum for each file, recorded at the first pull and demanded afterwards.

The record lies in `received.json` in the user's data folder: {model: {file: sha256}}. It is trust on first use: it
cannot tell whether the first delivery was right, only that a later one is another.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from edge import texts
from edge.errors import StorageError, UserError
from edge.files import write_whole
from edge.locking import holding
from edge.paths import data_folder


def path() -> Path:
    return data_folder() / "received.json"


def recorded(model: str) -> dict[str, str]:
    """The sums of a model's files as first received, empty if it never was."""
    return _read().get(model, {})


def check(model: str, sums: Mapping[str, str]) -> bool:
    """Record the sums of a model that was never received; True then. Raises UserError where the record differs."""
    if model not in _read() and _record(model, sums):
        return True
    compare(model, sums)
    return False


def compare(model: str, sums: Mapping[str, str]) -> None:
    """Raise UserError if the model was received before and was another then."""
    before = _read().get(model, sums)
    changed = sorted({name for name, _ in before.items() ^ sums.items()})
    if changed:
        raise UserError(
            f"{model}: {changed[0]} is not what was received first (SHA-256 {before.get(changed[0])}, now "
            f"{sums.get(changed[0])}); if that is right, remove {model} from {path()}"
        )


def _read() -> dict[str, dict[str, str]]:
    try:
        data: dict[str, dict[str, str]] = texts.read_json(path())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise StorageError(f"{path()}: cannot be read ({error}); mend or remove it") from error
    tables = list(data.values()) if isinstance(data, dict) else [None]
    if not all(isinstance(table, dict) and all(isinstance(sum_, str) for sum_ in table.values()) for table in tables):
        raise StorageError(f"{path()}: is no table of models; mend or remove it")
    return data


def _record(model: str, sums: Mapping[str, str]) -> bool:
    """Add a model; False if another process just did. One process at a time, since the whole file is written anew."""
    try:
        path().parent.mkdir(parents=True, exist_ok=True)
        with holding(path().with_name(".received.lock")):
            known = _read()
            if model in known:
                return False
            # A damaged record would be refused, and with it every model that is not pinned.
            write_whole(path(), json.dumps({**known, model: dict(sums)}, indent=1, sort_keys=True))
            return True
    except OSError as error:
        raise StorageError(f"{path()}: cannot be written: {error.strerror}") from error
