"""The user's folders for data and cache, by each system's own convention, and paths that begin with one (~)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from edge.errors import NotFoundError, StorageError


def data_folder() -> Path:
    """Where the local store lives; DSEDGE_HOME overrides."""
    return _folder("DSEDGE_HOME", "XDG_DATA_HOME", ".local/share", "Library/Application Support")


def cache_folder() -> Path:
    """Where downloads and derived data live, safe to delete; DSEDGE_CACHE overrides."""
    return _folder("DSEDGE_CACHE", "XDG_CACHE_HOME", ".cache", "Library/Caches")


def _folder(override: str, xdg: str, unix: str, mac: str) -> Path:
    if os.environ.get(override):
        return expanded(os.environ[override])
    if sys.platform == "darwin":
        return _home() / mac / "dsedge"
    if sys.platform == "win32":
        local = Path(os.environ.get("LOCALAPPDATA") or _home() / "AppData/Local")
        return local / "dsedge" / ("cache" if override == "DSEDGE_CACHE" else "data")
    named = Path(os.environ.get(xdg, ""))
    # The XDG specification: a relative path is invalid and ignored.
    return (named if named.is_absolute() else _home() / unix) / "dsedge"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:
        raise StorageError(f"this user has no home folder ({error}); set DSEDGE_HOME and DSEDGE_CACHE") from error


def expanded(path: str | Path) -> Path:
    """The path with `~` or `~user` at its front replaced.

    Raises NotFoundError for a user without a home folder, and for an empty text, which `Path` takes for this folder.
    """
    if path == "":
        raise NotFoundError("an empty path names no file or folder; write . for the current folder")
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise NotFoundError(
            f"{path}: no such user here, or one without a home folder; begin it with ./ or /"
        ) from error
