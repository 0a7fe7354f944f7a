"""Matrices inside an op: in which order they are quantized, and what each member of a stack is multiplied with.

A row of an input counts by its square, so what an expert sees of a token is scaled by the weight that the router gave
it, and tokens that it never sees are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge.ops import Experts, LatentAttention, Op, Weight
from exporters.reference.rows import activate
from exporters.reference.state import Array, WeightCache

# (weights as they are so far, the op's inputs of one sample) → the inputs of each member, [rows, columns]
Inputs = Callable[[WeightCache, Sequence[Array]], Iterator[Array]]


@dataclass(frozen=True, slots=True)
class Stage:
    """Stacks that are quantized together, on inputs that those of earlier stages have made."""

    weights: tuple[Weight, ...]
    inputs: Inputs


def _experts(attrs: Experts) -> tuple[Stage, ...]:
    def chosen(values: Sequence[Array]) -> Iterator[tuple[int, Array, Array]]:
        x, routing = values
        for expert in range(attrs.gate.shape[0]):
            rows = np.flatnonzero(routing[:, expert])
            yield expert, x[rows], routing[rows, expert, None]

    def outer(weights: WeightCache, values: Sequence[Array]) -> Iterator[Array]:
        return (x * counts for _, x, counts in chosen(values))

    def middle(weights: WeightCache, values: Sequence[Array]) -> Iterator[Array]:
        for expert, x, counts in chosen(values):
            gate, up = (weights.member(weight, expert) for weight in (attrs.gate, attrs.up))
            yield activate(attrs.activation, x @ gate.T) * (x @ up.T) * counts

    return Stage((attrs.gate, attrs.up), outer), Stage((attrs.down,), middle)


def _latents(attrs: LatentAttention) -> tuple[Stage, ...]:
    def queries(weights: WeightCache, values: Sequence[Array]) -> Iterator[Array]:
        yield from values[0].reshape(len(values[0]), attrs.heads, attrs.nope_dim).transpose(1, 0, 2)

    def latents(weights: WeightCache, values: Sequence[Array]) -> Iterator[Array]:
        yield from (values[2] for _ in range(attrs.heads))

    return Stage((attrs.key_up,), queries), Stage((attrs.value_up,), latents)


INNER: dict[type[Any], Callable[[Any], tuple[Stage, ...]]] = {Experts: _experts, LatentAttention: _latents}


def stages(op: Op[Any]) -> tuple[Stage, ...]:
    """Those of an op; none of one that has no matrices inside."""
    found = INNER.get(type(op.attrs))
    return () if found is None else found(op.attrs)
