"""Equalization: the channels of every head's keys brought to about one size, by factors that its queries take back.

A score is a sum of products of a channel of a query with one of a key, so dividing the one and multiplying the other
changes nothing. A rope turns two channels into each other: such a pair has one factor, as all heads have that share the
weight of a norm. A cache in int8 rounds a whole key by its largest channel; Qwen2's biases make some of them tens of
times as large as the others (known fault K8).

Factors are powers of two. Multiplying by one is exact, so the float model keeps every bit of its logits (but for a norm
with an offset, which takes a rounding), a matrix keeps its codes, and the manifest tells the factors by small numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.channels import Channels, Float, Makers, chain, channels, makers
from edge.graph import Graph
from edge.ops import Attention, Linear, Norm, Op, Rope
from exporters.architectures.views import Recomputed
from exporters.payload_writer import Plan
from exporters.reference import Reader

KEY = "equalization"  # of a manifest's recipe
_MOST = 10  # of an exponent: what is beyond a factor of 1,024 is a constant, or nothing
_LEAST = 2  # of a layer's largest exponent: where no channel is three times as large as the others all stay as they are

Exponents = npt.NDArray[np.int64]  # [kv_heads, dim]: keys are divided by 2 to this, their group's queries multiplied


@dataclass(frozen=True, slots=True)
class Factor:
    """What the rows of a weight are multiplied by; a norm's weight with the offset that is added to it."""

    rows: Float
    offset: float = 0.0

    def of(self, values: Float, start: int = 0, stop: int | None = None) -> Float:
        """Rows start…stop of the weight, multiplied."""
        factors = self.rows[start:stop]
        if values.ndim == 2:
            factors = factors[:, None]
        offset = np.float32(self.offset)
        return np.asarray((values + offset) * factors - offset if self.offset else values * factors)


@dataclass(frozen=True, slots=True)
class _Multiplied(Recomputed):
    """A weight's source, times its factor."""

    factor: Factor

    @property
    def change(self) -> str:
        return "equalized"

    def read(self, start: int = 0, stop: int | None = None) -> Float:
        return self.factor.of(self.inner.read(start, stop), start, stop)


def find(graph: Graph, plans: Mapping[str, Plan]) -> dict[int, Exponents]:
    """The exponents of each layer where there is something to do.

    Left out are latent attention, which keeps no keys of heads, and layers with a matrix whose codes are carried.
    """

    def read(name: str) -> Float:
        return plans[name].source.read()

    made, found = makers(graph), dict[int, Exponents]()
    for op in graph.ops:
        if isinstance(op.attrs, Attention) and not _carries(made, op, plans):
            with np.errstate(over="ignore", invalid="ignore"):  # what cannot be stored is refused where it is
                keys = channels(read, made, op.inputs[1], op.attrs.kv_heads, op.attrs.dim)
                exponents = _exponents(op, made, keys)
            if exponents.max() >= _LEAST:
                found[op.attrs.layer] = exponents
    return found


def factors(graph: Graph, exponents: Mapping[int, Exponents]) -> dict[str, Factor]:
    """The factors of weights by name: of norms where queries and keys have them, else of matrices and their biases."""
    made, found = makers(graph), dict[str, Factor]()
    for op in graph.ops:
        if not isinstance(op.attrs, Attention) or op.attrs.layer not in exponents:
            continue
        keys = exponents[op.attrs.layer]
        queries = np.repeat(keys, op.attrs.heads // op.attrs.kv_heads, axis=0)
        for value, powers in ((op.inputs[0], queries), (op.inputs[1], -keys)):
            found |= _of(_scaled(made, value), np.exp2(powers.astype(np.float32)))
    return found


def apply(plans: Mapping[str, Plan], found: Mapping[str, Factor]) -> dict[str, Plan]:
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
        return found[name].of(values, start, stop) if name in found else values

    return multiplied if found else read


def to_json(exponents: Mapping[int, Exponents]) -> dict[str, Any]:
    """What a manifest's recipe tells: by layer, for each head of keys, the exponent of every channel."""
    return {str(layer): found.tolist() for layer, found in exponents.items()}


def _exponents(op: Op[Attention], made: Makers, keys: Channels) -> Exponents:
    """Each channel's size over the median of its head's, as a power of two; one for a pair that is rotated.

    Channels of zeros stay, and so do those of a head that has no others.
    """
    squares = np.square(keys.sizes, dtype=np.float64) + np.square(keys.means, dtype=np.float64)
    rope = next((item.attrs for item in chain(made, op.inputs[1]) if isinstance(item.attrs, Rope)), None)
    if rope is not None:
        half = rope.rotary // 2
        pairs = (squares[:, :half] + squares[:, half : rope.rotary]) / 2
        squares[:, : rope.rotary] = np.concatenate([pairs, pairs], axis=1)
    usable = (squares > 0) & np.isfinite(squares)
    powers = np.log2(squares, out=np.zeros_like(squares), where=usable) / 2
    for head, known in zip(powers, usable, strict=True):
        head -= np.median(head[known]) if known.any() else 0
        head[~known] = 0
    return np.clip(np.rint(powers), -_MOST, _MOST).astype(np.int64)


def _scaled(made: Makers, value: str) -> Op[Any]:
    """The op whose weight scales the channels of queries or keys: a norm of their own, else their linear."""
    ops = chain(made, value)
    return next((op for op in ops if isinstance(op.attrs, Norm)), ops[-1])


def _of(op: Op[Any], powers: Float) -> dict[str, Factor]:
    """The factors of an op's weights; `powers` are those of its channels, [heads, dim]."""
    attrs: Norm | Linear = op.attrs
    if isinstance(attrs, Norm):
        rows = powers[0] if attrs.dim == powers.shape[1] else powers.ravel()  # one weight for each head, or for all
        return {attrs.weight.name: Factor(rows, attrs.offset)}
    return {weight.name: Factor(powers.ravel()) for weight in op.weights}


def _carries(made: Makers, op: Op[Attention], plans: Mapping[str, Plan]) -> bool:
    """Whether codes would be carried of a matrix that is to be multiplied."""
    scaled = (_scaled(made, value) for value in op.inputs[:2])
    return any("carry" in plans[weight.name].choice.methods for item in scaled for weight in item.weights)
