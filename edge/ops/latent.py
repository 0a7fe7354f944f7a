"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): keys and values come from a small latent of a token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from edge.decoder import DecoderSpec
from edge.layers import KvSpec
from edge.ops.attention import keeps
from edge.ops.op import OpKind, Weight


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """q_nope, q_rope, latent, k_rope → [tokens, heads * value_dim].

    q_nope is [tokens, heads * nope_dim], q_rope [tokens, heads * rope_dim] and rotated, latent [tokens, latent_dim] and
    normalized, k_rope [tokens, rope_dim] and rotated, the same for all heads. The layer keeps latent and k_rope of each
    token, side by side. With U = `key_up` [heads, latent_dim, nope_dim], V = `value_up` [heads, value_dim, latent_dim],
    head h of a query and a kept token has the score scale · (q_nope · (Uₕᵀ latent) + q_rope · k_rope), and the value
    Vₕ latent. A backend may expand the kept latents so (for a prompt), or absorb U into the query and V into the result
    (for a single token): both compute the same.
    """

    kind: ClassVar[str] = "latent_attention"
    heads: int
    nope_dim: int
    rope_dim: int
    latent_dim: int
    value_dim: int
    layer: int
    group: int
    scale: float
    key_up: Weight
    value_up: Weight


def _width(attrs: LatentAttention, inputs: Sequence[int], spec: DecoderSpec) -> int:
    heads, latent = attrs.heads, attrs.latent_dim
    widths = [heads * attrs.nope_dim, heads * attrs.rope_dim, latent, attrs.rope_dim]
    shapes = (heads, latent, attrs.nope_dim), (heads, attrs.value_dim, latent)
    fits = list(inputs) == widths and (attrs.key_up.shape, attrs.value_up.shape) == shapes
    kept = KvSpec("latent", 1, latent + attrs.rope_dim, 0, None)
    return heads * attrs.value_dim if fits and keeps(spec, attrs.layer, attrs.group, kept) else -1


LATENT_ATTENTION = OpKind(4, _width, attends=lambda attrs: int(attrs.layer))
