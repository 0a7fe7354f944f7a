"""Equalization: keys with large constants lose them to their queries.

A score is a sum of products of a channel of a query with one of a key, so dividing the one and multiplying the other
changes nothing. A rope turns two channels into each other: such a pair has one factor. A cache in int8 rounds a whole
key by its largest channel; Qwen2's biases make some of them tens of times as large as the others (known fault K8).

Factors are powers of two. Multiplying by one is exact, so the float model keeps every bit of its logits, a matrix keeps
its codes, and the manifest tells the factors by small numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.channels import Channels, Float, Makers, chain, channels, makers
from edge.graph import Graph
from edge.ops import Attention, Norm, Op, Rope
from exporters.architectures.views import Recomputed
from exporters.payload_writer import Plan
from exporters.reference import Reader

KEY = "equalization"  # of a manifest's recipe
_MOST = 10  # of an exponent
_LEAST = 4.0  # a constant in standard deviations of its head's channels, from which on it is too large for a cache

Exponents = npt.NDArray[np.int64]  # [kv_heads, dim]: keys are divided by 2 to this, their group's queries multiplied
Factors = dict[str, Float]  # of a weight's rows


@dataclass(frozen=True, slots=True)
class _Multiplied(Recomputed):
    """A weight's source, each row times its factor."""

    factors: Float

    @property
    def change(self) -> str:
        return "equalized"

    def read(self, start: int = 0, stop: int | None = None) -> Float:
        return _times(self.inner.read(start, stop), self.factors[start:stop])


def find(graph: Graph, plans: Mapping[str, Plan]) -> dict[int, Exponents]:
    """The exponents of each layer where there is something to do.

    Left out are latent attention, keys with a norm of their own, which takes a bias away, and matrices whose codes are
    carried.
    """

    def read(name: str) -> Float:
        return plans[name].source.read()

    made, found = makers(graph), dict[int, Exponents]()
    for op in graph.ops:
        if not isinstance(op.attrs, Attention):
            continue
        ops = [item for value in op.inputs[:2] for item in chain(made, value)]
        carried = any("carry" in plans[weight.name].choice.methods for item in ops for weight in item.weights)
        if carried or any(isinstance(item.attrs, Norm) for item in ops):
            continue
        with np.errstate(over="ignore", invalid="ignore"):  # what cannot be stored is refused where it is
            exponents = _exponents(op, made, channels(read, made, op.inputs[1], op.attrs.kv_heads, op.attrs.dim))
        if exponents.any():
            found[op.attrs.layer] = exponents
    return found


def factors(graph: Graph, exponents: Mapping[int, Exponents]) -> Factors:
    """The factors of matrices and their biases by name."""
    made, found = makers(graph), Factors()
    for op in graph.ops:
        if isinstance(op.attrs, Attention) and op.attrs.layer in exponents:
            keys = exponents[op.attrs.layer]
            queries = np.repeat(keys, op.attrs.heads // op.attrs.kv_heads, axis=0)
            for value, powers in ((op.inputs[0], queries), (op.inputs[1], -keys)):
                rows = np.exp2(powers.ravel().astype(np.float32))
                found |= {weight.name: rows for weight in chain(made, value)[-1].weights}
    return found


def apply(plans: Mapping[str, Plan], found: Factors) -> dict[str, Plan]:
    """The plans with their sources multiplied."""
    return {
        name: replace(plan, source=_Multiplied(plan.source, found[name])) if name in found else plan
        for name, plan in plans.items()
    }


def reader(read: Reader, graph: Graph, recipe: Mapping[str, Any]) -> Reader:
    """A source's weights as they were when a bundle was made of them; `recipe` is that of its manifest."""
    told: Mapping[str, Any] = recipe.get(KEY, {})
    found = factors(graph, {int(layer): np.asarray(exponents, np.int64) for layer, exponents in told.items()})

    def multiplied(name: str, start: int, stop: int | None) -> Float:
        values = read(name, start, stop)
        return _times(values, found[name][start:stop]) if name in found else values

    return multiplied


def to_json(exponents: Mapping[int, Exponents]) -> dict[str, Any]:
    """What a manifest's recipe tells: by layer, for each head of keys, the exponent of every channel."""
    return {str(layer): found.tolist() for layer, found in exponents.items()}


def _exponents(op: Op[Attention], made: Makers, keys: Channels) -> Exponents:
    """The size of each channel with a large constant, over the median of its head's channels, as a power of two.

    A pair that is rotated has one.
    """
    sizes, means = (np.square(values, dtype=np.float64) for values in (keys.sizes, keys.means))
    rope = next((item.attrs for item in chain(made, op.inputs[1]) if isinstance(item.attrs, Rope)), None)
    if rope is not None:
        half = rope.rotary // 2
        for squares in (sizes, means):
            pairs = (squares[:, :half] + squares[:, half : rope.rotary]) / 2
            squares[:, : rope.rotary] = np.concatenate([pairs, pairs], axis=1)
    typical = np.median(sizes, axis=1, keepdims=True)
    stands_out = (means > _LEAST**2 * sizes.mean(axis=1, keepdims=True)) & (typical > 0) & np.isfinite(means)
    ratio = np.divide(sizes + means, typical, out=np.ones_like(sizes), where=stands_out)
    powers: Exponents = np.minimum(np.rint(np.log2(ratio) / 2), _MOST).astype(np.int64)
    return powers


def _times(values: Float, rows: Float) -> Float:
    return np.asarray(values * (rows[:, None] if values.ndim == 2 else rows))
