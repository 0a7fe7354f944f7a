"""Stacks of matrices: shown one under another, taken apart, transposed, or put together from single tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.payload import Scheme
from exporters.architectures.views import Recomputed, View
from exporters.checkpoint import SourceTensor
from exporters.checkpoint.source import row_range


@dataclass(frozen=True, slots=True)
class Stacked:
    """Tensors of one shape [rows, columns], one under another: [count * rows, columns]."""

    tensors: tuple[SourceTensor, ...]

    @property
    def name(self) -> str:
        return self.tensors[0].name

    @property
    def shape(self) -> tuple[int, ...]:
        rows, *rest = self.tensors[0].shape
        return (len(self.tensors) * rows, *rest)

    @property
    def dtype(self) -> str:
        return self.tensors[0].dtype

    @property
    def scheme(self) -> Scheme | None:
        """That of the tensors, if they have one in common."""
        schemes = {tensor.scheme for tensor in self.tensors}
        return schemes.pop() if len(schemes) == 1 else None

    @property
    def note(self) -> str:
        if self.scheme is None and self.tensors[0].scheme is not None:
            return "its matrices are quantized in different ways: dequantized"
        return self.tensors[0].note

    def read(self, start: int = 0, stop: int | None = None) -> npt.NDArray[np.float32]:
        found = [self.tensors[index].read(first, last) for index, first, last in self._ranges(start, stop)]
        return np.concatenate(found) if found else np.empty((0, *self.shape[1:]), np.float32)

    def codes(self, start: int = 0, stop: int | None = None) -> dict[str, npt.NDArray[Any]]:
        found = [self.tensors[index].codes(first, last) for index, first, last in self._ranges(start, stop)]
        return {name: np.concatenate([codes[name] for codes in found]) for name in found[0]}

    def _ranges(self, start: int, stop: int | None) -> list[tuple[int, int, int]]:
        """(index, first row, last row) of each tensor that rows start…stop touch."""
        start, count, _ = row_range(self.shape, start, stop)
        return ranges(start, start + count, self.tensors[0].shape[0])


def ranges(start: int, stop: int, each: int) -> list[tuple[int, int, int]]:
    """Rows start…stop of matrices of `each` rows under one another: (matrix, first row in it, last row in it)."""
    return [
        (index, max(start - index * each, 0), min(stop - index * each, each))
        for index in range(start // each, -(-stop // each))
    ]


@dataclass(frozen=True, slots=True)
class Flat(View):
    """A tensor [count, rows, columns] as [count * rows, columns]."""

    @property
    def shape(self) -> tuple[int, ...]:
        count, rows, columns = self.inner.shape
        return (count * rows, columns)

    def read(self, start: int = 0, stop: int | None = None) -> npt.NDArray[np.float32]:
        start, count, columns = row_range(self.shape, start, stop)
        rows = self.inner.shape[1]
        first, last = start // rows, -(-(start + count) // rows)
        found = self.inner.read(first, last).reshape(-1, columns)
        return found[start - first * rows :][:count]

    def codes(self, start: int = 0, stop: int | None = None) -> dict[str, npt.NDArray[Any]]:
        start, count, _ = row_range(self.shape, start, stop)
        rows = self.inner.shape[1]
        first, last = start // rows, -(-(start + count) // rows)
        found = {name: part.reshape((last - first) * rows, -1) for name, part in self.inner.codes(first, last).items()}
        return {name: part[start - first * rows :][:count] for name, part in found.items()}


@dataclass(frozen=True, slots=True)
class RowsOfEach(View):
    """`rows` rows, from `first` on, of each of `count` equal runs of rows: [count * rows, columns].

    Where a checkpoint fuses matrices head by head, or expert by expert.
    """

    count: int
    first: int
    rows: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.count * self.rows, *self.inner.shape[1:])

    def read(self, start: int = 0, stop: int | None = None) -> npt.NDArray[np.float32]:
        found = [self.inner.read(first, last) for first, last in self._ranges(start, stop)]
        return np.concatenate(found) if found else np.empty((0, *self.shape[1:]), np.float32)

    def codes(self, start: int = 0, stop: int | None = None) -> dict[str, npt.NDArray[Any]]:
        found = [self.inner.codes(first, last) for first, last in self._ranges(start, stop)]
        return {name: np.concatenate([codes[name] for codes in found]) for name in found[0]}

    def _ranges(self, start: int, stop: int | None) -> list[tuple[int, int]]:
        start, count, _ = row_range(self.shape, start, stop)
        run = self.inner.shape[0] // self.count
        base = [index * run + self.first for index in range(self.count)]
        return [
            (base[index] + first, base[index] + last) for index, first, last in ranges(start, start + count, self.rows)
        ]


@dataclass(frozen=True, slots=True)
class EachTransposed(Recomputed):
    """`count` matrices [rows, columns] under one another, each transposed: [count * columns, rows].

    The groups of its codes lie along the other axis.
    """

    count: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.count * self.inner.shape[1], self.inner.shape[0] // self.count)

    @property
    def change(self) -> str:
        return "transposed"

    def read(self, start: int = 0, stop: int | None = None) -> npt.NDArray[np.float32]:
        start, count, rows = row_range(self.shape, start, stop)
        found = [
            self.inner.read(index * rows, (index + 1) * rows).T[first:last]
            for index, first, last in ranges(start, start + count, self.inner.shape[1])
        ]
        return np.concatenate(found) if found else np.empty((0, rows), np.float32)
