"""An open file of a checkpoint, read piece by piece, and the plain number formats that such files hold."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.errors import CheckpointError, ClosedError

PLAIN_DTYPES = {"F32": 4, "F16": 2, "BF16": 2}  # bytes a number


class SourceFile:
    """Reads byte ranges into fresh arrays, so that memory grows with what is read and not with the file.

    Concurrent reads are safe: seek and read happen under one lock.
    """

    def __init__(self, path: Path) -> None:
        """Raises CheckpointError when the file cannot be opened."""
        self.path = path
        try:
            self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed by `close`
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
        self._lock = threading.Lock()

    def read(self, start: int, count: int, tensor: str) -> npt.NDArray[np.uint8]:
        """`count` bytes from `start`. Raises CheckpointError naming the tensor when the file is shorter now."""
        buffer = np.empty(count, np.uint8)
        view = buffer.data
        done = 0
        with self._lock:
            if self._file.closed:
                raise ClosedError(f"{self.path}: read after close")
            try:
                self._file.seek(start)
                while done < count:
                    got = self._file.readinto(view[done:])
                    if not got:
                        break
                    done += got
            except OSError as error:
                raise CheckpointError(f"{self.path}: tensor {tensor!r} cannot be read: {error.strerror}") from error
        if done < count:
            raise CheckpointError(
                f"{self.path}: truncated while it was read: tensor {tensor!r} needs the bytes up to {start + count}, "
                f"the file ends at {start + done}"
            )
        return buffer

    def read_strided(self, rows: tuple[int, int], shape: tuple[int, int], tensor: str) -> npt.NDArray[np.uint8]:
        """Bytes [rows, count] = `shape`, where row i starts at rows[0] + i * rows[1]. Raises as `read`."""
        start, stride = rows
        if shape[1] == stride:
            return self.read(start, shape[0] * shape[1], tensor).reshape(shape)
        found = np.empty(shape, np.uint8)
        for row in range(shape[0]):
            found[row] = self.read(start + row * stride, shape[1], tensor)
        return found

    def close(self) -> None:
        with self._lock:
            self._file.close()


def row_range(shape: tuple[int, ...], start: int, stop: int | None) -> tuple[int, int, int]:
    """(first row, rows, numbers a row) of a request for rows start…stop. The range must lie inside the tensor."""
    total = shape[0]
    stop = total if stop is None else stop
    if not 0 <= start <= stop <= total:
        raise IndexError(f"rows {start}…{stop} of {total}")
    width = 1
    for size in shape[1:]:
        width *= size
    return start, stop - start, width


def to_float32(raw: npt.NDArray[np.uint8], dtype: str) -> npt.NDArray[np.float32]:
    """Little-endian numbers of a dtype in `PLAIN_DTYPES`, widened exactly; F32 is returned as it is."""
    if dtype == "F32":
        return np.asarray(raw.view("<f4"), np.float32)
    if dtype == "F16":
        return raw.view("<f2").astype(np.float32)
    wide: npt.NDArray[Any] = raw.view("<u2").astype(np.uint32)
    wide <<= 16  # a bfloat16 is the upper half of a float32
    return wide.view(np.float32)
