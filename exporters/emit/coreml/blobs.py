"""Writing weight.bin, the file of a package's large constants: one blob after another, as a stream.

    file header (64 bytes)     u32 count of blobs, u32 version = 2
    each blob, 64-aligned      u32 0xDEADBEEF, u32 dtype, u64 bytes, u64 offset of the data, u64 bits of padding;
                               the rest of 64 bytes is zero; then the data, 64-aligned

The program refers to the offset of a blob's metadata. Numbers of 4 bits are packed two to a byte, the first in the low
half; little-endian throughout. These are facts of Core ML's storage format, version 2.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import BinaryIO

ALIGNMENT = 64
_VERSION, _SENTINEL = 2, 0xDEADBEEF
# dtype → its number in the file, and bits of a number
DTYPES: dict[str, tuple[int, int]] = {
    "float16": (1, 16), "float32": (2, 32), "uint8": (3, 8), "int8": (4, 8), "int4": (8, 4), "uint4": (11, 4),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Blob:
    """A constant: its type and shape, and a call that yields its bytes in pieces."""

    dtype: str
    shape: tuple[int, ...]
    pieces: Callable[[], Iterator[bytes]]


class BlobWriter:
    """Writes blobs into a file; a blob of a name that is there already is not written again. A context manager."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._offsets: dict[str, int] = {}

    def __enter__(self) -> BlobWriter:
        self._file.write(bytes(ALIGNMENT))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.seek(0)
        self._file.write(struct.pack("<II", len(self._offsets), _VERSION))

    def add(self, name: str, blob: Blob) -> int:
        """Write a blob, unless it is there; the offset of its metadata. Raises OSError."""
        if name in self._offsets:
            return self._offsets[name]
        number, bits = DTYPES[blob.dtype]
        count = 1
        for size in blob.shape:
            count *= size
        size = -(-count * bits // 8)
        start = self._align()
        self._file.write(struct.pack("<IIQQQ", _SENTINEL, number, size, start + ALIGNMENT, size * 8 - count * bits))
        self._align()
        written = sum(self._file.write(piece) for piece in blob.pieces())
        assert written == size, f"{name}: {written} bytes of {size}"
        self._offsets[name] = start
        return start

    def _align(self) -> int:
        """Fill up to a multiple of ALIGNMENT; the position there."""
        position = self._file.tell()
        self._file.write(bytes(-position % ALIGNMENT))
        return position + -position % ALIGNMENT
