"""Rotary embedding, and grouped-query attention over what a layer keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from edge.decoder import DecoderSpec
from edge.layers import KvSpec
from edge.ops.op import OpKind


@dataclass(frozen=True, slots=True)
class Rope:
    """x → same: rotates the first `rotary` of the `dim` numbers of each of `heads` heads by the positions.

    Pairs are half-split: number i with i + rotary/2. `rope` indexes the spec's ropes, which give the angles.
    """

    kind: ClassVar[str] = "rope"

    heads: int
    dim: int
    rope: int
    rotary: int


@dataclass(frozen=True, slots=True)
class Attention:
    """q, k, v → [tokens, heads * dim]: over what `layer` keeps in KV group `group`, and the new rows, kept as well.

    q is [tokens, heads * dim], k and v [tokens, kv_heads * dim]. `window` is that of `edge.layers.Gqa`.
    """

    kind: ClassVar[str] = "attention"

    heads: int
    kv_heads: int
    dim: int
    layer: int
    group: int
    scale: float
    window: int | None = None
    softcap: float | None = None


def _rope_width(attrs: Rope, inputs: Sequence[int], spec: DecoderSpec) -> int:
    fits = attrs.heads * attrs.dim == inputs[0] and 0 < attrs.rotary <= attrs.dim
    return inputs[0] if fits and 0 <= attrs.rope < len(spec.ropes) else -1


def _attention_width(attrs: Attention, inputs: Sequence[int], spec: DecoderSpec) -> int:
    kv = attrs.kv_heads * attrs.dim
    fits = list(inputs) == [attrs.heads * attrs.dim, kv, kv] and attrs.heads % attrs.kv_heads == 0
    kept = KvSpec("heads", attrs.kv_heads, attrs.dim, attrs.dim, attrs.window)
    return inputs[0] if fits and keeps(spec, attrs.layer, attrs.group, kept) else -1


def keeps(spec: DecoderSpec, layer: int, group: int, kept: KvSpec) -> bool:
    """Whether the spec says that a layer keeps this, in the KV group of that number."""
    if not (0 <= layer < len(spec.layers) and 0 <= group < len(spec.kv_groups)):
        return False
    return kept == spec.kv_groups[group] == spec.layers[layer].attention.kv


ROPE = OpKind(1, _rope_width)
ATTENTION = OpKind(3, _attention_width, attends=lambda attrs: int(attrs.layer))
