"""Adam (Kingma and Ba, arXiv:1412.6980) for one tensor, in place: the direction of a step, its numbers about 1."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_MEAN, _SQUARE = 0.9, 0.95  # how much of the gradients' mean, and of their squares', is kept from step to step
_TINY = 1e-30  # a number that never had a gradient stays where it is


@dataclass(frozen=True, slots=True)
class Moments:
    """Running means of a tensor's gradient and of its square."""

    mean: Tensor
    square: Tensor

    @classmethod
    def of(cls, like: Tensor) -> Moments:
        return cls(torch.zeros_like(like), torch.zeros_like(like))

    def direction(self, gradient: Tensor, step: int) -> Tensor:
        """Count a gradient in; the direction to go against. `step` counts from 0; the gradient is used up."""
        self.mean.lerp_(gradient, 1 - _MEAN)
        self.square.mul_(_SQUARE).addcmul_(gradient, gradient, value=1 - _SQUARE)
        root = torch.sqrt(self.square, out=gradient).add_(_TINY)
        corrected = (1 - _SQUARE ** (step + 1)) ** 0.5 / (1 - _MEAN ** (step + 1))
        return torch.div(self.mean, root, out=root).mul_(corrected)
