"""What the differentiable evaluators share: the weights, and the shape of the samples that run together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from edge import rope
from edge.graph import Graph
from edge.ops import Weight
from exporters.distill.places import moved

# A weight in its shape, as it is to be used: for a learned one with its gradient.
Weights = Callable[[Weight], Tensor]


@dataclass(frozen=True, slots=True)
class Pass:
    """`samples` sequences of `length` tokens each, one under another: values are [samples * length, width]."""

    graph: Graph
    weights: Weights
    samples: int
    length: int

    def angles(self, index: int) -> tuple[Tensor, Tensor]:
        """cos and sin, [length, 1, dim / 2] each: the same for every sample."""
        positions = np.arange(self.length, dtype=np.int64)
        cos, sin = rope.angles(self.graph.spec.ropes[index], positions, context=self.length)
        return moved(cos)[:, None], moved(sin)[:, None]

    def visible(self, group: int) -> Tensor | None:
        """Who sees whom, bool [length, length]; None where a query sees everything before it."""
        window = self.graph.spec.kv_groups[group].window
        if window is None or window >= self.length:
            return None
        distance = torch.arange(self.length)[:, None] - torch.arange(self.length)
        return (distance >= 0) & (distance < window)
