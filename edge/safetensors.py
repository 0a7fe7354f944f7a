"""The safetensors container: reading its header with every bound checked, and planning the header of a new file.

Format (huggingface/safetensors): a little-endian u64 header length, a JSON header {name: {dtype, shape, data_offsets}},
then the data; tensors cover the data without holes or overlaps. The header may end in spaces.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge import texts
from edge.errors import FormatError

DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip
ALIGNMENT = 64
PADDING = "__pad."
_HEADER_LIMIT = 100 << 20  # the format's own limit


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a file: `start` and `stop` are byte offsets in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def read_header(path: Path) -> dict[str, TensorInfo]:
    """The tensors of a safetensors file by name, in file order, `__metadata__` left out.

    Raises FormatError for anything but a complete, well-formed file.
    """
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            prefix = file.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
            if not 2 <= length <= min(_HEADER_LIMIT, size - 8):
                raise FormatError(f"{path}: not a safetensors file: a header of {length} bytes in {size}")
            header = texts.parse_json(file.read(length), unique=True)
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise FormatError(f"{path}: not a safetensors file: its header is no JSON ({error})") from error
    if not isinstance(header, dict):
        raise FormatError(f"{path}: not a safetensors file: its header is no JSON object")
    header.pop("__metadata__", None)
    base = 8 + length
    tensors = {name: _entry(path, name, entry, base) for name, entry in header.items()}
    tensors = dict(sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop)))
    _check_cover(path, tensors, base, size)
    return tensors


def _entry(path: Path, name: str, entry: Any, base: int) -> TensorInfo:
    try:
        dtype, shape, (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
        if dtype not in DTYPE_BYTES:
            raise ValueError(f"numbers of the type {dtype!r} are not known here")
        numbers = [*shape, start, stop]
        if not all(type(n) is int and 0 <= n < 2**62 for n in numbers) or len(shape) > 16:
            raise ValueError("sizes and offsets must be small non-negative integers")
        if DTYPE_BYTES[dtype] * math.prod(shape) != stop - start:
            raise ValueError(f"{stop - start} bytes for {dtype} {shape}")
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{path}: tensor {name!r} is described wrongly: {error}") from error
    return TensorInfo(dtype, tuple(shape), base + start, base + stop)


def _check_cover(path: Path, tensors: Mapping[str, TensorInfo], base: int, size: int) -> None:
    position = base
    for name, info in tensors.items():
        if info.stop > size:
            raise FormatError(f"{path}: truncated: tensor {name!r} ends at byte {info.stop}, the file at {size}")
        if info.start != position:
            raise FormatError(f"{path}: tensor {name!r} starts at byte {info.start} where {position} is next")
        position = info.stop
    if position != size:
        raise FormatError(f"{path}: {size - position} bytes follow the last tensor")


def plan_header(tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> tuple[bytes, dict[str, TensorInfo]]:
    """Header bytes and the offsets for (name, dtype, shape) in this order, each tensor on a 64-byte boundary.

    Gaps become explicit `__pad.N` tensors of bytes, which must be written as zeros.
    """
    entries: dict[str, tuple[str, tuple[int, ...], int, int]] = {}
    position = 0
    for name, dtype, shape in tensors:
        gap = -position % ALIGNMENT
        if gap:
            entries[f"{PADDING}{len(entries)}"] = ("U8", (gap,), position, position + gap)
            position += gap
        stop = position + DTYPE_BYTES[dtype] * math.prod(shape)
        entries[name] = (dtype, shape, position, stop)
        position = stop
    described = {
        name: {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop]}
        for name, (dtype, shape, start, stop) in entries.items()
    }
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    base = 8 + len(text)
    infos = {
        name: TensorInfo(dtype, shape, base + start, base + stop)
        for name, (dtype, shape, start, stop) in entries.items()
    }
    return struct.pack("<Q", len(text)) + text, infos
