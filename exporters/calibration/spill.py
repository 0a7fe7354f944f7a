"""Values of many samples between two segments: in memory up to a limit, in files of a temporary folder beyond it."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import numpy.typing as npt

LIMIT = 1 << 29  # bytes in memory
Key = tuple[str, int]  # value, sample


class Spill:
    """Arrays by key, each put once and dropped once. Safe to use from several threads for different keys."""

    def __init__(self, folder: Path, limit: int | None = None) -> None:
        self._folder, self._limit = folder, LIMIT if limit is None else limit
        self._held: dict[Key, npt.NDArray[np.generic]] = {}
        self._files: dict[Key, int] = {}  # the number that is the file's name
        self._bytes = self._count = 0
        self._lock = threading.Lock()

    def put(self, key: Key, values: npt.NDArray[np.generic]) -> None:
        with self._lock:
            fits = self._bytes + values.nbytes <= self._limit
            if fits:
                self._bytes += values.nbytes
                self._held[key] = values
                return
            self._count += 1
            number = self._files[key] = self._count
        np.save(self._path(number), values)

    def get(self, key: Key) -> npt.NDArray[np.generic]:
        with self._lock:
            found = self._held.get(key)
            number = self._files.get(key)
        if found is not None:
            return found
        assert number is not None, key
        values: npt.NDArray[np.generic] = np.load(self._path(number))
        return values

    def drop(self, key: Key) -> None:
        with self._lock:
            found = self._held.pop(key, None)
            if found is not None:
                self._bytes -= found.nbytes
                return
            number = self._files.pop(key)
        self._path(number).unlink()

    def _path(self, number: int) -> Path:
        return self._folder / f"{number}.npy"

    def clear(self) -> None:
        """Drop everything."""
        for key in [*self._held, *self._files]:
            self.drop(key)
