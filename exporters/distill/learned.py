"""What is learned: the codes and scales of a quantized matrix, and vectors.

Each holds `value`, the numbers that the forward pass uses, as a leaf with a gradient. `update` takes that gradient,
moves what is learned and makes `value` anew, so that what is trained is always exactly what the bundle will hold: codes
are whole, scales are float16. A code moves as a latent number, whose nearest integer it is; the gradient of the code
counts as the latent's (straight-through, arXiv:1308.3432).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from edge import payload
from edge.payload import Scheme
from exporters.distill.adam import Moments
from exporters.distill.places import fetched, moved
from exporters.quant.method import Array, Parts

EDGE = 0.49  # how far from its code a latent begins at most, and how far beyond the range it may go
SCALES = 0.133  # rate of scales and vectors, relative to their size, by that of codes in quanta
_LARGEST = 65504.0


class Learned(Protocol):
    """Something with a value that can be moved against its gradient, and put down and taken up as tensors."""

    value: Tensor

    def update(self, rate: float, step: int) -> None:
        """One step of `rate` quanta. The gradient is used up."""
        ...

    def tensors(self) -> Mapping[str, Tensor]:
        """All of its state but `value`, to be copied out or, in place, in."""
        ...

    def renew(self) -> None:
        """Make `value` what the state says."""
        ...

    def parts(self) -> Parts:
        """The payload's parts."""
        ...


class Matrix:
    """Rows in a scheme, [rows, columns]. Zero points stay as they are, codes, scales and offsets are learned."""

    def __init__(self, scheme: Scheme, parts: Parts, source: Array) -> None:
        """`parts` are what another method made of the rows `source`: the codes to begin with."""
        self._scheme, self._given = scheme, parts
        codes, scales, shifts = (moved(np.asarray(part, np.float32)) for part in payload.unpack(scheme, parts))
        self._columns = source.shape[1]
        self._affine = scheme.kind == "affine"
        zeros = torch.zeros_like(shifts) if self._affine else torch.round(shifts / scales.where(scales != 0, 1.0))
        self._low = zeros if self._affine else torch.where(scales != 0, zeros, -float(scheme.zero))
        self._high = self._low + float((1 << scheme.bits) - 1)
        begin = codes + self._low
        self._base, self._offset_base = scales, shifts
        self._factor, self._offset = torch.ones_like(scales), torch.zeros_like(shifts)
        wanted = torch.zeros_like(codes)
        wanted.view(len(codes), -1)[:, : self._columns] = moved(source)
        if self._affine:
            wanted -= shifts
        wanted /= scales.where(scales != 0, 1.0)
        self._latent = begin + _inside(wanted - begin)
        self._moments = {"latent": Moments.of(self._latent), "factor": Moments.of(scales)}
        if self._affine:
            self._moments["offset"] = Moments.of(shifts)
        self.value = torch.empty(source.shape)
        self.renew()
        self.value.requires_grad_()

    def _codes(self) -> Tensor:
        return torch.round(self._latent).clamp_(self._low, self._high)

    def _scales(self) -> Tensor:
        return (self._base * self._factor).clamp_(-_LARGEST, _LARGEST).half().float()

    def _offsets(self) -> Tensor:
        moved = self._offset_base + self._base * self._offset
        return moved.clamp_(-_LARGEST, _LARGEST).half().float()

    @torch.no_grad()
    def update(self, rate: float, step: int) -> None:
        gradient = self._grouped_gradient()
        codes = self._codes()
        factor = codes.mul_(gradient).sum(dim=2, keepdim=True).mul_(self._base)
        self._factor.sub_(self._moments["factor"].direction(factor, step), alpha=rate * SCALES)
        if self._affine:
            offset = gradient.sum(dim=2, keepdim=True).mul_(self._base)
            self._offset.sub_(self._moments["offset"].direction(offset, step), alpha=rate)
        del codes
        gradient.mul_(self._base)
        self._latent.sub_(self._moments["latent"].direction(gradient, step), alpha=rate)
        self._latent.clamp_(self._low - EDGE, self._high + EDGE)
        self.renew()

    def _grouped_gradient(self) -> Tensor:
        gradient = self.value.grad
        assert gradient is not None
        self.value.grad = None
        padding = self._latent.shape[1] * self._scheme.group - self._columns
        if padding:
            gradient = torch.nn.functional.pad(gradient, (0, padding))
        return gradient.reshape(self._latent.shape)

    @torch.no_grad()
    def renew(self) -> None:
        found = self._codes().mul_(self._scales())
        if self._affine:
            found.add_(self._offsets())
        self.value.copy_(found.view(len(found), -1)[:, : self._columns])

    def tensors(self) -> Mapping[str, Tensor]:
        found = {"latent": self._latent, "factor": self._factor, "offset": self._offset}
        for name, moments in self._moments.items():
            found |= {f"{name}.mean": moments.mean, f"{name}.square": moments.square}
        return found

    def parts(self) -> Parts:
        codes = fetched((self._codes() - self._low).to(torch.uint8)).reshape(len(self.value), -1)
        made: Parts = {**self._given, "scales": fetched(self._scales()[..., 0]).astype(np.float16)}
        made["codes"] = payload.pack_nibbles(codes) if self._scheme.bits == 4 else codes
        if self._affine:
            made["offsets"] = fetched(self._offsets()[..., 0]).astype(np.float16)
        return made


def _inside(distance: Tensor) -> Tensor:
    """Where latents begin, less their codes, by how far the source's numbers lie from the codes.

    A code that is the nearest one has its latent at the source's number. One that was moved away from the nearest to
    make up for others begins the farther from going back, the further it was moved: were all of these latents at the
    boundary, they would cross it together in the first steps, and what they make up for would be lost.
    """
    size = distance.abs()
    folded = torch.where(size < 0.5, size, (1 - size).clamp_min(0))
    return folded.clamp_max_(EDGE).copysign(distance)


class Vector:
    """A norm's weight or a bias."""

    def __init__(self, values: Array, unit: float) -> None:
        """`unit` is the size of the numbers, by which a step is measured."""
        self._unit = unit
        self._numbers = moved(np.array(values, np.float32))
        self._moments = Moments.of(self._numbers)
        self.value = self._numbers.clone().requires_grad_()

    @torch.no_grad()
    def update(self, rate: float, step: int) -> None:
        gradient = self.value.grad
        assert gradient is not None
        self.value.grad = None
        self._numbers.sub_(self._moments.direction(gradient, step), alpha=rate * SCALES * self._unit)
        self.renew()

    @torch.no_grad()
    def renew(self) -> None:
        self.value.copy_(self._numbers)

    def tensors(self) -> Mapping[str, Tensor]:
        return {"numbers": self._numbers, "mean": self._moments.mean, "square": self._moments.square}

    def parts(self) -> Parts:
        return {"": fetched(self._numbers).copy()}
