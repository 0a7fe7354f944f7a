"""What a run of a matrix is stored in on the device: codes as the payload has them, or plain numbers.

Either gives its numbers as float32 into a buffer that all matrices share (`Workspace`), some rows at a time: a product
needs no more memory than that, whatever the matrix.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, assert_never

import numpy as np
import torch
from torch import Tensor

from edge import payload
from edge.payload import Run, Scheme
from edge.weights import Weights


class Workspace:
    """The buffers that weights are dequantized into, one matrix after another. What is in one is true until the next.

    `numbers` is how many float32 numbers it holds; a row that is longer still makes it grow.
    """

    def __init__(self, device: torch.device, numbers: int) -> None:
        self.device, self.numbers = device, numbers
        self._buffers: dict[torch.dtype, Tensor] = {}

    def take(self, dtype: torch.dtype, *shape: int) -> Tensor:
        """The buffer of a dtype in a shape, with whatever is in it."""
        count = int(np.prod(shape))
        found = self._buffers.get(dtype)
        if found is None or len(found) < count:
            self.numbers = max(self.numbers, count)
            found = self._buffers[dtype] = torch.empty(self.numbers, dtype=dtype, device=self.device)
        return found[:count].view(shape)

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for buffer in self._buffers.values())


class Stored(Protocol):
    """A run of a matrix on the device, [rows, columns]."""

    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def take(self, index: Tensor | slice) -> Stored:
        """Some of its rows."""
        ...

    def numbers(self, work: Workspace) -> Tensor:
        """All of it as float32 [rows, columns], in the workspace."""
        ...


@dataclass(frozen=True, slots=True)
class Plain:
    """Numbers as they are stored, float16 or float32."""

    values: Tensor

    @property
    def rows(self) -> int:
        return len(self.values)

    @property
    def columns(self) -> int:
        return self.values.shape[1]

    @property
    def nbytes(self) -> int:
        return self.values.nbytes

    def take(self, index: Tensor | slice) -> Plain:
        return Plain(self.values[index])

    def numbers(self, work: Workspace) -> Tensor:
        if self.values.dtype == torch.float32:
            return self.values
        return work.take(torch.float32, *self.values.shape).copy_(self.values)


@dataclass(frozen=True, slots=True)
class Codes:
    """Codes with their scales (see edge.payload).

    codes    uint8 [rows, groups * group * bits / 8]
    scales   float16 [rows, groups]
    shifts   float16 [rows, groups]: offsets of `affine`; uint8: zero points of `zp`; None in `sym`
    """

    scheme: Scheme
    columns: int
    codes: Tensor
    scales: Tensor
    shifts: Tensor | None

    @property
    def rows(self) -> int:
        return len(self.codes)

    @property
    def groups(self) -> int:
        return self.scales.shape[1]

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes + (0 if self.shifts is None else self.shifts.nbytes)

    def take(self, index: Tensor | slice) -> Codes:
        shifts = None if self.shifts is None else self.shifts[index]
        return Codes(self.scheme, self.columns, self.codes[index], self.scales[index], shifts)

    def numbers(self, work: Workspace) -> Tensor:
        shape = (self.rows, self.groups, self.scheme.group)
        found = work.take(torch.float32, *shape)
        scales = self.scales.float()
        torch.mul(self.unpacked(work).view(shape), scales[..., None], out=found)
        found += self.offsets(scales)[..., None]
        return found.view(self.rows, -1)[:, : self.columns]

    def unpacked(self, work: Workspace) -> Tensor:
        """A code a byte, uint8 [rows, groups * group]."""
        if self.scheme.bits == 8:
            return self.codes
        found = work.take(torch.uint8, *self.codes.shape, 2)
        torch.bitwise_and(self.codes, 15, out=found[..., 0])
        torch.bitwise_right_shift(self.codes, 4, out=found[..., 1])
        return found.view(self.rows, -1)

    def offsets(self, scales: Tensor) -> Tensor:
        """What is added to scale · code, for float32 scales [rows, groups]."""
        if self.shifts is None:
            return -scales * self.scheme.zero
        return -scales * self.shifts if self.scheme.kind == "zp" else self.shifts.float()


def blocks(stored: Stored, work: Workspace, multiple: int = 1) -> Iterator[Stored]:
    """Its rows in order, as many at a time as fit the workspace: each time but the last a multiple of so many."""
    width = stored.columns if not isinstance(stored, Codes) else stored.groups * stored.scheme.group
    for rows in _cut(stored.rows, width, work, multiple):
        yield stored.take(rows)


def streamed(weights: Weights, run: Run, work: Workspace, multiple: int = 1) -> Iterator[Stored]:
    """The same of a run of a payload that is not on the device as a whole. Raises BundleError."""
    scheme = weights.schemes[run.name]
    width = run.shape[1] if scheme is None else scheme.groups(run.shape[1]) * scheme.group
    for rows in _cut(run.shape[0], width, work, multiple):
        yield read(weights, run, work.device, rows.start, rows.stop)


def _cut(rows: int, width: int, work: Workspace, multiple: int) -> Iterator[slice]:
    step = max(1, work.numbers // width // multiple) * multiple
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def read(weights: Weights, run: Run, device: torch.device, start: int = 0, stop: int | None = None) -> Stored:
    """Rows start…stop of a run of a payload, on a device. Raises BundleError."""
    scheme = weights.schemes[run.name]
    if scheme is None:
        return Plain(_moved(weights.tensor(run.name, start, stop), device))
    parts = weights.parts(run.name, start, stop)
    shifts: Any = None
    match scheme.kind:
        case "sym":
            pass
        case "zp":
            shifts = payload.unpack_nibbles(parts["zeros"], parts["scales"].shape[1])
        case "affine":
            shifts = parts["offsets"]
        case _:
            assert_never(scheme.kind)
    return Codes(
        scheme,
        run.shape[1],
        _moved(parts["codes"], device),
        _moved(parts["scales"], device),
        None if shifts is None else _moved(shifts, device),
    )


def _moved(values: Any, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)
