"""The GGUF container, versions 2 and 3: its header parsed with every count, length and offset checked.

Layout (ggml's gguf specification): "GGUF", u32 version, u64 tensor count, u64 metadata count; the metadata (a string
key, a u32 type, a value); the tensor table (a string name, u32 dimensions, u64 sizes fastest first, u32 type, u64
offset); then, on a multiple of general.alignment, the tensor data. A string is a u64 length and UTF-8 bytes, an array
a u32 type, a u64 count and its items. Everything is little-endian.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.errors import CheckpointError, UnsupportedError

MAGIC = b"GGUF"
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_STRING, _ARRAY = 8, 9
_MAX_NESTING = 4
_LEAST_ENTRY, _LEAST_TENSOR, _LEAST_ARRAY = 13, 24, 12  # bytes that any metadata entry, tensor and nested array take
_NAMES = {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 8: "Q8_0", 30: "BF16"}
_BLOCKS = {"F32": (1, 4), "F16": (1, 2), "BF16": (1, 2), "Q4_0": (32, 18), "Q4_1": (32, 20), "Q8_0": (32, 34)}


@dataclass(frozen=True, slots=True)
class BlockType:
    """A tensor type: `size` bytes hold `block` numbers."""

    name: str
    block: int
    size: int


@dataclass(frozen=True, slots=True)
class GgufTensorInfo:
    """One tensor: shape with the rows first, and where its bytes lie in the file."""

    name: str
    shape: tuple[int, ...]
    type: BlockType
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Metadata values are int, float, bool, str, list[str], list[list] or a numpy array of numbers."""

    metadata: dict[str, Any]
    tensors: dict[str, GgufTensorInfo]


def read_gguf_header(path: Path) -> GgufHeader:
    """Parse and check a file's header.

    Raises CheckpointError for a file that is no GGUF, is damaged, or is too short for its header or for any tensor
    (naming it, with the size that is needed and the one that is there); UnsupportedError for big-endian files, other
    versions and unknown tensor types.
    """
    try:
        with open(path, "rb") as file:
            if file.read(4) != MAGIC:
                raise CheckpointError(f"{path}: no GGUF file: it does not start with 'GGUF'")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Parser(path, data).header()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error


class _Parser:
    """A cursor over the mapped file; only the pages of the header are ever touched."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.size = len(data)
        self.at = len(MAGIC)

    def header(self) -> GgufHeader:
        self._version()
        tensors, entries = self._u64("the tensor count"), self._u64("the metadata count")
        self._room(entries, _LEAST_ENTRY, "metadata entries")
        metadata: dict[str, Any] = {}
        for index in range(entries):
            key = self._string(f"metadata key {index}")
            if key in metadata:
                raise CheckpointError(f"{self.path}: metadata key {key!r} appears twice")
            metadata[key] = self._value(self._u32(f"the type of {key}"), key, 0)
        self._room(tensors, _LEAST_TENSOR, "tensors")
        table: dict[str, GgufTensorInfo] = {}
        for index in range(tensors):
            info = self._tensor(index)
            if info.name in table:
                raise CheckpointError(f"{self.path}: tensor {info.name!r} appears twice")
            table[info.name] = info
        return GgufHeader(metadata, self._place(table, _alignment(self.path, metadata)))

    def _version(self) -> None:
        version = self._u32("the version")
        if version in (2, 3):
            return
        if version & 0xFFFF == 0 and version:
            raise UnsupportedError(
                f"{self.path}: a big-endian GGUF file; convert the model for a little-endian machine"
            )
        raise UnsupportedError(f"{self.path}: GGUF version {version}; 2 and 3 can be read: convert the model again")

    def _need(self, count: int, what: str) -> int:
        """Move over `count` bytes and return where they start."""
        start = self.at
        if count > self.size - start:
            raise CheckpointError(
                f"{self.path}: truncated or damaged in its header: {what} needs {count} bytes from byte {start} on, "
                f"the file has {self.size}"
            )
        self.at = start + count
        return start

    def _room(self, count: int, least: int, what: str) -> None:
        if count * least > self.size - self.at:
            raise CheckpointError(
                f"{self.path}: truncated or damaged in its header: {count} {what} need at least {count * least} bytes "
                f"from byte {self.at} on, the file has {self.size}"
            )

    def _u32(self, what: str) -> int:
        value: int = _U32.unpack_from(self.data, self._need(4, what))[0]
        return value

    def _u64(self, what: str) -> int:
        value: int = _U64.unpack_from(self.data, self._need(8, what))[0]
        return value

    def _string(self, what: str) -> str:
        length = self._u64(f"the length of {what}")
        start = self._need(length, what)
        try:
            return self.data[start : start + length].decode()
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{self.path}: {what} is no UTF-8 text") from error

    def _value(self, kind: int, key: str, depth: int) -> Any:
        if kind == _STRING:
            return self._string(key)
        if kind == _ARRAY:
            return self._array(key, depth)
        value = self._numbers(kind, 1, key)[0]
        if kind == 6:  # a float32 stands for the decimal that it was written from: 1e-5, not 9.99999974e-06
            return float(str(value))
        return value.item()

    def _array(self, key: str, depth: int) -> Any:
        kind, count = self._u32(f"the item type of {key}"), self._u64(f"the item count of {key}")
        if kind == _STRING:
            return self._strings(count, key)
        if kind != _ARRAY:
            return self._numbers(kind, count, key)
        if depth >= _MAX_NESTING:
            raise CheckpointError(f"{self.path}: {key} nests arrays deeper than {_MAX_NESTING}")
        self._room(count, _LEAST_ARRAY, f"arrays of {key}")
        return [self._array(key, depth + 1) for _ in range(count)]

    def _numbers(self, kind: int, count: int, key: str) -> npt.NDArray[Any]:
        if kind not in _SCALARS:
            raise CheckpointError(f"{self.path}: {key} has the unknown value type {kind}")
        dtype = np.dtype(_SCALARS[kind])
        start = self._need(count * dtype.itemsize, key)
        return np.frombuffer(self.data[start : self.at], dtype)

    def _strings(self, count: int, key: str) -> list[str]:
        """A vocabulary has up to some 300,000 strings, so this loop does as little as it can an item."""
        self._room(count, 8, f"strings of {key}")
        data, at, size, unpack = self.data, self.at, self.size, _U64.unpack_from
        items: list[str] = []
        for _ in range(count):
            start = at + 8
            at = start + unpack(data, at)[0] if start <= size else size + 1
            if at > size:
                break
            try:
                items.append(data[start:at].decode())
            except UnicodeDecodeError as error:
                raise CheckpointError(f"{self.path}: item {len(items)} of {key} is no UTF-8 text") from error
        if at > size:
            raise CheckpointError(
                f"{self.path}: truncated or damaged in its header: item {len(items)} of {key} ends after the file, "
                f"which has {size} bytes"
            )
        self.at = at
        return items

    def _tensor(self, index: int) -> GgufTensorInfo:
        """An entry of the tensor table; `start` is still relative to the data."""
        name = self._string(f"the name of tensor {index}")
        what = f"the description of tensor {name!r}"
        dims = self._u32(what)
        if not 1 <= dims <= 4:
            raise CheckpointError(f"{self.path}: tensor {name!r} has {dims} dimensions; 1 to 4 are allowed")
        shape = tuple(self._u64(what) for _ in range(dims))[::-1]
        kind, start = block_type(self._u32(what), self.path, name), self._u64(what)
        count = 1
        for size in shape:
            count *= size
        if not 0 < count < 2**60 or shape[-1] % kind.block:
            raise CheckpointError(
                f"{self.path}: tensor {name!r} has the shape {list(shape)}, which {kind.name} cannot hold"
            )
        return GgufTensorInfo(name, shape, kind, start, count // kind.block * kind.size)

    def _place(self, table: dict[str, GgufTensorInfo], alignment: int) -> dict[str, GgufTensorInfo]:
        """Turn the offsets into file positions and check that the data is there."""
        base = self.at + -self.at % alignment
        placed: dict[str, GgufTensorInfo] = {}
        end = 0
        for info in sorted(table.values(), key=lambda item: item.start):
            if info.start % alignment or info.start < end:
                raise CheckpointError(
                    f"{self.path}: tensor {info.name!r} lies at offset {info.start}, over another's data"
                )
            end = info.start + info.size
            if base + end > self.size:
                raise CheckpointError(
                    f"{self.path}: truncated: tensor {info.name!r} needs {info.size} bytes and the file to have "
                    f"{base + end}; it has {self.size}; download it again"
                )
            placed[info.name] = GgufTensorInfo(info.name, info.shape, info.type, base + info.start, info.size)
        return placed


def _alignment(path: Path, metadata: dict[str, Any]) -> int:
    value = metadata.get("general.alignment", 32)
    if type(value) is not int or not 1 <= value <= 1 << 20 or value & (value - 1):
        raise CheckpointError(f"{path}: general.alignment is {value!r}; it must be a power of two up to {1 << 20}")
    return value


def block_type(number: int, path: Path, tensor: str) -> BlockType:
    """The tensor type of that number. The gguf package knows the ones that are not carried as they are."""
    if number in _NAMES:
        return BlockType(_NAMES[number], *_BLOCKS[_NAMES[number]])
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        kind = GGMLQuantizationType(number)
        return BlockType(kind.name, *GGML_QUANT_SIZES[kind])
    except (ValueError, KeyError) as error:
        raise UnsupportedError(f"{path}: tensor {tensor!r} is of type {number}, which is not known here") from error
