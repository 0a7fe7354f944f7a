"""Reading weight.bin, mapped into memory: every header is checked before its data is used.

file header (64 bytes)     u32 count, u32 version = 2
metadata at an offset      u32 0xDEADBEEF, u32 type, u64 bytes, u64 offset of the data, u64 bits of padding
"""

from __future__ import annotations

import math
import mmap
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.errors import BundleError

_ALIGNMENT, _VERSION, _SENTINEL = 64, 2, 0xDEADBEEF
# The number of a type in the file → its name here and the bits of a number.
_TYPES = {1: ("float16", 16), 2: ("float32", 32), 3: ("uint8", 8), 4: ("int8", 8), 8: ("int4", 4), 11: ("uint4", 4)}
_NIBBLES = {"int4": 8, "uint4": 0}


class Blobs:
    """The constants of a package."""

    def __init__(self, path: Path) -> None:
        """Raises BundleError for a file that is none of Core ML's."""
        self._path = path
        try:
            with open(path, "rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise BundleError(f"{path}: cannot be read: {error}") from error
        if len(self._map) < _ALIGNMENT or struct.unpack_from("<II", self._map)[1] != _VERSION:
            raise BundleError(f"{path}: is no file of Core ML weights of version {_VERSION}")
        self.count: int = struct.unpack_from("<I", self._map)[0]

    def check(self, offset: int, dtype: str, shape: tuple[int, ...]) -> int:
        """The offset of the data of a blob. Raises BundleError unless its header says this type and this many bytes."""
        where = f"{self._path}: the blob at {offset}"
        if offset % _ALIGNMENT or not _ALIGNMENT <= offset <= len(self._map) - _ALIGNMENT:
            raise BundleError(f"{where}: lies outside of the file's {len(self._map)} bytes, or not at a multiple of 64")
        sentinel, number, size, start, padding = map(int, struct.unpack_from("<IIQQQ", self._map, offset))
        if sentinel != _SENTINEL or number not in _TYPES:
            raise BundleError(f"{where}: has no header of a blob; the package is damaged")
        found, bits = _TYPES[number]
        needed = math.prod(shape) * bits
        if found != dtype or size != -(-needed // 8) or padding != size * 8 - needed:
            raise BundleError(f"{where}: holds {size} bytes of {found}, and {dtype} {list(shape)} is needed")
        if start % _ALIGNMENT or start < offset + _ALIGNMENT or start + size > len(self._map):
            raise BundleError(f"{where}: its data at {start} lies outside of the file's {len(self._map)} bytes")
        return start

    def read(self, offset: int, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """The numbers of a blob: float16 or float32 as they lie there, codes as int16."""
        return self._numbers(self.check(offset, dtype, shape), dtype, shape)

    def forget(self) -> None:
        """Let go of the pages that were read, where the system can: they would count as this process's memory."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def rows(self, offset: int, dtype: str, shape: tuple[int, ...], bounds: tuple[int, int]) -> npt.NDArray[Any]:
        """Some rows of a blob whose shape is seen as [rows, columns], all axes but the last one put together."""
        start, bits = self.check(offset, dtype, shape), 4 if dtype in _NIBBLES else 8 * np.dtype(dtype).itemsize
        columns = shape[1:] if len(shape) < 3 else shape[-1:]
        first = bounds[0] * math.prod(columns) * bits
        inner = (bounds[1] - bounds[0], *columns)
        if first % 8 == 0:
            return self._numbers(start + first // 8, dtype, inner)
        return self._numbers(start, dtype, (bounds[1], *columns))[bounds[0] :]  # from within a byte on

    def _numbers(self, start: int, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        count = math.prod(shape)
        if dtype not in _NIBBLES:
            found = np.frombuffer(self._map, np.dtype(dtype).newbyteorder("<"), count, start).reshape(shape)
            return found if dtype.startswith("float") else found.astype(np.int16)
        packed = np.frombuffer(self._map, np.uint8, -(-count // 2), start)
        codes = np.empty(2 * len(packed), np.int16)
        codes[0::2], codes[1::2] = packed % 16, packed // 16
        half = _NIBBLES[dtype]
        if half:
            codes -= 16 * (codes >= half)
        return codes[:count].reshape(shape)
