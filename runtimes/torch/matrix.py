"""The weights of a model on the device: vectors, matrices in runs, and stacks of matrices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from edge.payload import Axis, Run
from runtimes.torch.codes import Stored, Workspace
from runtimes.torch.products import Product, times


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix that inputs are multiplied with: a product for each of its runs of rows or columns."""

    runs: tuple[Run, ...]
    axis: Axis
    products: tuple[Product, ...]

    def times(self, x: Tensor) -> Tensor:
        """x [n, columns] → float32 [n, rows]."""
        if self.axis == "rows":
            found = [product(x) for product in self.products]
            return found[0] if len(found) == 1 else torch.cat(found, dim=1)
        parts = (
            product(x[:, run.start : run.stop]) for run, product in zip(self.runs, self.products, strict=True)
        )  # fmt: skip
        return torch.stack(list(parts)).sum(dim=0)

    @property
    def nbytes(self) -> int:
        return sum(product.nbytes for product in self.products)


class Rows:
    """A matrix that is read by rows: an embedding, or a stack of matrices that stand under one another."""

    def __init__(self, runs: Sequence[Run], axis: Axis, stored: Sequence[Stored], work: Workspace) -> None:
        self.runs, self.axis, self.stored, self.work = tuple(runs), axis, tuple(stored), work

    @property
    def nbytes(self) -> int:
        return sum(stored.nbytes for stored in self.stored)

    def take(self, index: Tensor) -> Tensor:
        """Rows as float32 [n, columns]; what the result is in is used again by the next call."""
        if len(self.stored) == 1:
            return self.stored[0].take(index).numbers(self.work)
        if self.axis == "columns":
            return torch.cat([stored.take(index).numbers(self.work).clone() for stored in self.stored], dim=1)
        found = torch.zeros(len(index), self.stored[0].columns, device=self.work.device)
        for run, stored in zip(self.runs, self.stored, strict=True):
            inside = (index >= run.start) & (index < run.stop)
            numbers = stored.take((index - run.start).clamp(0, stored.rows - 1)).numbers(self.work)
            found += torch.where(inside[:, None], numbers, 0.0)
        return found


class Stack:
    """`count` matrices of [rows, columns] each, of which products need some."""

    def __init__(self, rows: Rows, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.rows, self.dtype = rows, dtype
        self.count, self.height, self.columns = shape

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes

    def blocks(self) -> Iterator[tuple[int, Tensor]]:
        """All members, as many at a time as fit the workspace: (first, float32 [members, rows, columns])."""
        step = self.at_once
        for first in range(0, self.count, step):
            stop = min(first + step, self.count)
            yield first, self.members(torch.arange(first, stop, device=self.rows.work.device))

    def each(self, x: Tensor) -> Tensor:
        """Every member's transpose times its own rows: x [count, n, columns] → float32 [count, n, rows]."""
        found = [x[first : first + len(block)] @ block.transpose(1, 2) for first, block in self.blocks()]
        return found[0] if len(found) == 1 else torch.cat(found)

    @property
    def at_once(self) -> int:
        return max(1, self.rows.work.numbers // (self.height * self.columns))

    def members(self, index: Tensor) -> Tensor:
        """Some members, float32 [n, rows, columns], in the workspace."""
        inside = torch.arange(self.height, device=index.device)
        numbers = self.rows.take((index[:, None] * self.height + inside).flatten())
        return numbers.reshape(len(index), self.height, self.columns)

    def of_rows(self, x: Tensor, index: Tensor) -> Tensor:
        """x [n, columns] times a member's transpose each, float32 [n, rows]; nothing is read back from the device."""
        step = self.at_once
        found = [
            (self.members(index[first : first + step]) @ x[first : first + step, :, None])[..., 0]
            for first in range(0, len(x), step)
        ]
        return found[0] if len(found) == 1 else torch.cat(found)

    def times(self, x: Tensor, member: int) -> Tensor:
        """x [n, columns] times one member's transpose, float32 [n, rows]."""
        numbers = self.members(torch.tensor([member], device=x.device))[0]
        return times(x, numbers.to(self.dtype))
