"""Tensors as a safetensors file stores them, whatever their numbers mean, and what tensors without codes share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.errors import CheckpointError, InternalError
from edge.payload import Scheme
from exporters.checkpoint.source import PLAIN_DTYPES, SourceFile, row_range, to_float32

# What the bytes of a dtype are read as; those that numpy lacks are read as their bits.
_BITS: dict[str, np.dtype[Any]] = {
    "F8_E4M3": np.dtype(np.uint8), "F8_E5M2": np.dtype(np.uint8),
    "I32": np.dtype("<u4"), "U32": np.dtype("<u4"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a file, read by rows or by columns of a matrix."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    file: SourceFile
    offset: int

    def require(self, *dtypes: str) -> None:
        """Raises CheckpointError unless the tensor has one of these dtypes."""
        if self.dtype not in dtypes:
            raise CheckpointError(f"tensor {self.name!r} is {self.dtype}; it must be {' or '.join(dtypes)}")

    def numbers(self, start: int = 0, stop: int | None = None) -> npt.NDArray[np.float32]:
        """Rows start…stop of a tensor of a plain dtype as float32; a single number counts as one row."""
        shape = self.shape or (1,)
        start, rows, width = row_range(shape, start, stop)
        row_bytes = width * PLAIN_DTYPES[self.dtype]
        raw = self.file.read(self.offset + start * row_bytes, rows * row_bytes, self.name)
        return to_float32(raw, self.dtype).reshape(rows, *shape[1:])

    def bits(self, start: int = 0, stop: int | None = None) -> npt.NDArray[Any]:
        """Rows start…stop of a tensor of codes as unsigned integers."""
        start, rows, width = row_range(self.shape, start, stop)
        row_bytes = width * _BITS[self.dtype].itemsize
        raw = self.file.read(self.offset + start * row_bytes, rows * row_bytes, self.name)
        return raw.view(_BITS[self.dtype]).reshape(rows, *self.shape[1:])

    def columns(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Columns start…stop of a matrix, [rows, columns]: codes as unsigned integers, plain numbers as float32."""
        rows, width = self.shape
        plain = self.dtype in PLAIN_DTYPES
        size = PLAIN_DTYPES[self.dtype] if plain else _BITS[self.dtype].itemsize
        place = (self.offset + start * size, width * size)
        raw = self.file.read_strided(place, (rows, (stop - start) * size), self.name).reshape(-1)
        found = to_float32(raw, self.dtype) if plain else raw.view(_BITS[self.dtype])
        return found.reshape(rows, stop - start)


class Uncoded:
    """The part of a SourceTensor that says: no codes to carry."""

    __slots__ = ()

    @property
    def scheme(self) -> Scheme | None:
        return None

    def codes(self, start: int = 0, stop: int | None = None) -> dict[str, npt.NDArray[Any]]:
        raise InternalError(f"{type(self).__name__}: there are no codes to carry ({start}…{stop})")


@dataclass(frozen=True, slots=True)
class OneStored(Uncoded):
    """The part of a SourceTensor whose name, shape and dtype are those of one stored tensor."""

    stored: StoredTensor

    @property
    def name(self) -> str:
        return self.stored.name

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    @property
    def dtype(self) -> str:
        return self.stored.dtype


def fits_half(numbers: npt.NDArray[np.float32]) -> bool:
    """Whether every number is a finite float16."""
    with np.errstate(over="ignore"):
        return bool(np.array_equal(numbers.astype(np.float16).astype(np.float32), numbers)) and bool(
            np.isfinite(numbers).all()
        )
