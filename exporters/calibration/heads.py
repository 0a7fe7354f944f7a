"""What errors in the rows of a head cost together: of a query by the keys that it meets, of a key by its queries.

Both are told by the weights of the other side and the second moment of the input that they share, E[k kᵀ] = W H Wᵀ (a
bias counts as if it were independent of that). A rope turns the two against each other by their distance: the moments
are averaged over distances.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge import rope as ropes
from edge.channels import chain, makers
from edge.decoder import RopeSpec
from edge.graph import Graph
from edge.ops import Attention, Norm, Op, Rope, Weight
from exporters.reference.state import Array, Reader

DISTANCES = 256  # tokens between a query and the keys that are averaged over


def moments(graph: Graph, group: Sequence[Weight], moment: Array, read: Reader) -> dict[str, Array]:
    """For the matrices of queries and of keys in a group with a common input: [heads, head_dim, head_dim] each.

    `moment` is the input's, [columns, columns]; empty for a group of other matrices.
    """
    op = _attention(graph, group)
    if op is None:
        return {}
    made, shared = makers(graph), op.attrs.heads // op.attrs.kv_heads
    query, key = (_Side.of(chain(made, value), op.attrs.dim) for value in op.inputs[:2])
    rope = None if query.rope is None else graph.spec.ropes[query.rope]
    queries = query.moments(moment, read).reshape(op.attrs.kv_heads, shared, op.attrs.dim, op.attrs.dim).sum(axis=1)
    met = np.repeat(_turned(key.moments(moment, read), rope, -1), shared, axis=0)
    return {
        query.weight.name: query.normed(met, read),
        key.weight.name: key.normed(_turned(queries, rope, 1), read),
    }


def _attention(graph: Graph, group: Sequence[Weight]) -> Op[Attention] | None:
    """The op whose queries a matrix of the group makes."""
    names, made = {weight.name for weight in group if weight.role == "query"}, makers(graph)
    for op in graph.ops if names else ():
        if isinstance(op.attrs, Attention) and chain(made, op.inputs[0])[-1].attrs.weight.name in names:
            return op
    return None


@dataclass(frozen=True, slots=True)
class _Side:
    """What makes queries or keys: a matrix, its bias, a norm, a rope; `dim` numbers to a head."""

    weight: Weight
    bias: Weight | None
    norm: Norm | None
    rope: int | None
    dim: int

    @classmethod
    def of(cls, ops: Sequence[Op[Any]], dim: int) -> _Side:
        norm = next((op.attrs for op in ops if isinstance(op.attrs, Norm)), None)
        rope = next((op.attrs.rope for op in ops if isinstance(op.attrs, Rope)), None)
        return cls(ops[-1].attrs.weight, ops[-1].attrs.bias, norm, rope, dim)

    def moments(self, moment: Array, read: Reader) -> Array:
        """The second moment of each head, before a rope, [heads, dim, dim]; of a normed one with a trace of dim."""
        rows = read(self.weight.name, 0, None).reshape(-1, self.dim, moment.shape[0])
        found: Array = np.stack([head @ moment @ head.T for head in rows])
        if self.bias is not None:
            bias = read(self.bias.name, 0, None).reshape(-1, self.dim)
            found += bias[:, :, None] * bias[:, None]
        if self.norm is not None:
            sizes = np.einsum("hii->h", found)[:, None, None]
            found = np.divide(self.dim * found, sizes, out=np.zeros_like(found), where=sizes > 0)
        return self.normed(found, read)

    def normed(self, found: Array, read: Reader) -> Array:
        """[heads, dim, dim] with the norm's weight on both sides, if there is one."""
        if self.norm is None:
            return found
        factors = read(self.norm.weight.name, 0, None) + np.float32(self.norm.offset)
        factors = np.broadcast_to(factors.reshape(-1, self.dim), found.shape[:2])
        return np.asarray(found * factors[:, :, None] * factors[:, None])


def _turned(moments: Array, rope: RopeSpec | None, sign: int) -> Array:
    """The moments of vectors that are rotated by 0, 1, … positions, `sign` 1 forward, averaged; [heads, dim, dim].

    With z = a + ib for the two numbers of each pair, a moment is E[z z*] and E[z z], and a rotation multiplies their
    elements by exp(i(θ - θ')) and exp(i(θ + θ')). What a rope leaves alone makes pairs that are not rotated.
    """
    if rope is None:
        return moments
    dim, half = moments.shape[1], rope.dim // 2
    cos, sin = ropes.rotations(rope, np.arange(DISTANCES, dtype=np.int64), context=DISTANCES)
    turns = np.ones((DISTANCES, dim // 2), np.complex128)
    turns[:, :half] = cos + sign * 1j * sin
    left = np.arange(rope.dim, dim)
    first = np.concatenate([np.arange(half), left[: len(left) // 2]])
    second = np.concatenate([np.arange(half, rope.dim), left[len(left) // 2 :]])
    aa, ab, ba, bb = (moments[:, x[:, None], y] for x in (first, second) for y in (first, second))
    mutual = (aa + bb + 1j * (ba - ab)) * (turns.T @ turns.conj() / DISTANCES)
    joint = (aa - bb + 1j * (ba + ab)) * (turns.T @ turns / DISTANCES)
    found = np.empty_like(moments)
    found[:, first[:, None], first] = (mutual + joint).real / 2
    found[:, second[:, None], second] = (mutual - joint).real / 2
    found[:, second[:, None], first] = (mutual + joint).imag / 2
    found[:, first[:, None], second] = (joint - mutual).imag / 2
    return found
