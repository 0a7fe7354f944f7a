"""Tensors of a checkpoint shown in the shape and order that the graph wants, still read a few rows at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.errors import InternalError
from edge.payload import Scheme
from exporters.checkpoint import SourceTensor
from exporters.checkpoint.source import row_range


@dataclass(frozen=True, slots=True)
class View:
    """What all views share: they are named and typed like the tensor that they show."""

    inner: SourceTensor

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def shape(self) -> tuple[int, ...]:
        return self.inner.shape

    @property
    def dtype(self) -> str:
        return self.inner.dtype

    @property
    def scheme(self) -> Scheme | None:
        return self.inner.scheme

    @property
    def note(self) -> str:
        return self.inner.note


@dataclass(frozen=True, slots=True)
class HalfSplitRows(View):
    """Rows of q or k with the two numbers of a rotary pair side by side, shown half-split: i and i + head_dim / 2.

    llama.cpp's converter stores row 2j + p of a head where Hugging Face has row j + p * head_dim / 2. Rows move whole,
    so codes are carried like numbers. `heads` are the heads of this tensor: the kv heads for k.
    """

    heads: int

    def read(self, start: int = 0, stop: int | None = None) -> npt.NDArray[np.float32]:
        first, last, order = self._order(start, stop)
        return self.inner.read(first, last)[order]

    def codes(self, start: int = 0, stop: int | None = None) -> dict[str, npt.NDArray[Any]]:
        first, last, order = self._order(start, stop)
        return {name: part[order] for name, part in self.inner.codes(first, last).items()}

    def _order(self, start: int, stop: int | None) -> tuple[int, int, npt.NDArray[np.int64]]:
        """The whole heads to read, and where among their rows each wanted one is."""
        start, count, _ = row_range(self.shape, start, stop)
        dim = self.shape[0] // self.heads
        first = start // dim * dim
        last = -(-(start + count) // dim) * dim
        rows = np.arange(start, start + count)
        head, row = rows // dim, rows % dim
        return first, max(first, last), head * dim + row % (dim // 2) * 2 + row // (dim // 2) - first


@dataclass(frozen=True, slots=True)
class RowSlice(View):
    """`count` rows from `first` on: a matrix that a checkpoint has fused with others."""

    first: int
    count: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.count, *self.inner.shape[1:])

    def read(self, start: int = 0, stop: int | None = None) -> npt.NDArray[np.float32]:
        return self.inner.read(*self._range(start, stop))

    def codes(self, start: int = 0, stop: int | None = None) -> dict[str, npt.NDArray[Any]]:
        return self.inner.codes(*self._range(start, stop))

    def _range(self, start: int, stop: int | None) -> tuple[int, int]:
        start, count, _ = row_range(self.shape, start, stop)
        return self.first + start, self.first + start + count


@dataclass(frozen=True, slots=True)
class Recomputed(View):
    """A tensor whose numbers or groups are no longer those that its codes stand for: it has no codes to carry."""

    @property
    def change(self) -> str:
        """What is done to the tensor, for notes and errors."""
        raise NotImplementedError

    @property
    def scheme(self) -> Scheme | None:
        return None

    @property
    def note(self) -> str:
        if self.inner.scheme is None:
            return self.inner.note
        return f"{self.change}, so its {self.dtype} codes are not carried: dequantized"

    def codes(self, start: int = 0, stop: int | None = None) -> dict[str, npt.NDArray[Any]]:
        raise InternalError(f"tensor {self.name!r} is {self.change}: it has no codes ({start}…{stop})")


@dataclass(frozen=True, slots=True)
class Scaled(Recomputed):
    """A tensor times a number. The scales of its codes would have to be rounded anew."""

    factor: float

    @property
    def change(self) -> str:
        return f"multiplied by {self.factor:g}"

    def read(self, start: int = 0, stop: int | None = None) -> npt.NDArray[np.float32]:
        return self.inner.read(start, stop) * np.float32(self.factor)
