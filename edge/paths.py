"""The user's folders for data and cache, by each system's own convention."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def data_folder() -> Path:
    """Where the local store lives; DSEDGE_HOME overrides."""
    return _folder("DSEDGE_HOME", "XDG_DATA_HOME", ".local/share", "Library/Application Support")


def cache_folder() -> Path:
    """Where downloads and derived data live, safe to delete; DSEDGE_CACHE overrides."""
    return _folder("DSEDGE_CACHE", "XDG_CACHE_HOME", ".cache", "Library/Caches")


def _folder(override: str, xdg: str, unix: str, mac: str) -> Path:
    if os.environ.get(override):
        return Path(os.environ[override])
    if sys.platform == "darwin":
        return Path.home() / mac / "dsedge"
    if sys.platform == "win32":
        local = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local")
        return local / "dsedge" / ("cache" if override == "DSEDGE_CACHE" else "data")
    return Path(os.environ.get(xdg) or Path.home() / unix) / "dsedge"
