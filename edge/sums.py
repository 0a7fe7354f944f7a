"""SHA-256 sums of files, and the memory of those that were computed before."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from edge import texts
from edge.files import write_whole
from edge.paths import cache_folder


def sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class SumCache:
    """SHA-256 sums by path, size, inode and time of change, in one small file of the user's cache."""

    def __init__(self) -> None:
        self._path = cache_folder() / "sums.json"
        self._dirty = False
        try:
            self._sums: dict[str, str] = texts.read_json(self._path)
        except (OSError, ValueError):
            self._sums = {}  # absent or damaged: every sum is computed anew
        if not isinstance(self._sums, dict):
            self._sums = {}

    def get(self, path: Path, found: os.stat_result) -> str | None:
        return self._sums.get(self._key(path, found))

    def put(self, path: Path, found: os.stat_result, digest: str) -> None:
        self._sums[self._key(path, found)] = digest
        self._dirty = True

    def save(self) -> None:
        if not self._dirty:
            return
        recent = dict(list(self._sums.items())[-1000:])
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, json.dumps(recent))
        except OSError:
            pass  # a cache that cannot be written only costs time

    @staticmethod
    def _key(path: Path, found: os.stat_result) -> str:
        return f"{path.absolute()}|{found.st_size}|{found.st_mtime_ns}|{found.st_ino}"
