"""How a matrix is multiplied: one small class a way. All take x [n, columns] and give float32 [n, rows]."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from runtimes.torch.codes import Stored, Workspace, blocks

_TINY = 1e-30


class Product(Protocol):
    """x · Wᵀ for one run of a matrix. `way` is what `doctor` and `--stats` call it."""

    @property
    def way(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    def __call__(self, x: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Dequantized:
    """Rows are dequantized into the workspace, and multiplied there as `dtype`."""

    stored: Stored
    work: Workspace
    dtype: torch.dtype
    way: str = "dequantized per layer"

    @property
    def nbytes(self) -> int:
        return self.stored.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        out = torch.empty(len(x), self.stored.rows, dtype=torch.float32, device=x.device)
        start = 0
        for rows in blocks(self.stored, self.work):
            numbers = rows.numbers(self.work)
            if self.dtype != torch.float32:
                numbers = self.work.take(self.dtype, *numbers.shape).copy_(numbers)
            out[:, start : start + len(numbers)] = times(x, numbers)
            start += len(numbers)
        return out


@dataclass(frozen=True, slots=True)
class Dense:
    """The numbers themselves, dequantized once."""

    values: Tensor
    way: str = "dense"

    @property
    def nbytes(self) -> int:
        return self.values.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        return times(x, self.values)


def dense(shape: tuple[int, ...], parts: Iterable[Stored], work: Workspace, dtype: torch.dtype) -> Dense:
    """All numbers of a matrix [rows, columns] that comes in parts."""
    values = torch.empty(shape, dtype=dtype, device=work.device)
    start = 0
    for rows in parts:
        values[start : start + rows.rows] = rows.numbers(work)
        start += rows.rows
    return Dense(values, f"dense {str(dtype).removeprefix('torch.')}")


def times(x: Tensor, numbers: Tensor) -> Tensor:
    """x · numbersᵀ in the dtype of the numbers, given back as float32.

    Nothing overflows float16: each row of x is scaled to 1 first, and its product back in float32.
    """
    if numbers.dtype != torch.float16:
        return functional.linear(x.to(numbers.dtype), numbers).float()
    peak = x.abs().amax(dim=1, keepdim=True).clamp_min(_TINY)
    return functional.linear((x / peak).half(), numbers).float() * peak
