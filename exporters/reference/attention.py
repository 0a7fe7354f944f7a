"""The reference's rotary embedding and attention, grouped or over latents."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edge.ops import Attention, LatentAttention, Rope
from exporters.reference.state import Array, Step

_SCORES = 1 << 22  # at a time


def rotate(step: Step, attrs: Rope, inputs: Sequence[Array]) -> Array:
    """Rotate pair (i, i + rotary/2) of each head by its position's angle."""
    (x,) = inputs
    cos, sin = (angle[:, None] for angle in step.angles(attrs.rope))
    heads = x.reshape(len(x), attrs.heads, attrs.dim).copy()
    half = attrs.rotary // 2
    a, b = heads[..., :half].copy(), heads[..., half : attrs.rotary].copy()
    heads[..., :half] = a * cos - b * sin
    heads[..., half : attrs.rotary] = b * cos + a * sin
    return heads.reshape(x.shape)


def attend(step: Step, attrs: Attention, inputs: Sequence[Array]) -> Array:
    """Grouped-query attention over everything kept. q [n, heads * dim]; k, v [n, kv_heads * dim]."""
    q, k, v = (x.reshape(len(x), -1, attrs.dim) for x in inputs)
    keys, values = step.keep(f"{attrs.layer}.key", k), step.keep(f"{attrs.layer}.value", v)
    seen = _seen(step, attrs.group, len(keys))
    shared = attrs.heads // attrs.kv_heads
    queries = q.reshape(len(q), attrs.kv_heads, shared, attrs.dim).transpose(1, 2, 0, 3)
    out = np.empty_like(queries)  # [kv_heads, shared, n, dim]
    paid = np.zeros(seen.shape, np.float32)
    block = max(1, _SCORES // (shared * seen.size))
    for start in range(0, attrs.kv_heads, block):
        part = slice(start, start + block)
        scores = (queries[part] @ keys[:, part].transpose(1, 2, 0)[:, None]) * np.float32(attrs.scale)
        if attrs.softcap:
            scores = np.float32(attrs.softcap) * np.tanh(scores / np.float32(attrs.softcap))
        weights = _softmax(scores, seen)
        out[part] = weights @ values[:, part].transpose(1, 0, 2)[:, None]
        if step.told:
            paid += weights.sum(axis=(0, 1))
    if step.told:
        step.told(attrs.layer, paid)
    return out.transpose(2, 0, 1, 3).reshape(len(q), -1)


def attend_latents(step: Step, attrs: LatentAttention, inputs: Sequence[Array]) -> Array:
    """Latent attention in its expanded form: each head's keys and values are made from the kept latents."""
    q_nope, q_rope, latent, k_rope = inputs
    latents = step.keep(f"{attrs.layer}.latent", latent)
    shared = step.keep(f"{attrs.layer}.k_rope", k_rope)
    seen = _seen(step, attrs.group, len(latents))
    count, heads = len(latent), attrs.heads
    nope, rotated = q_nope.reshape(count, heads, attrs.nope_dim), q_rope.reshape(count, heads, attrs.rope_dim)
    out = np.empty((count, heads, attrs.value_dim), np.float32)
    paid = np.zeros(seen.shape, np.float32)
    for head in range(heads):
        keys = latents @ step.weights.member(attrs.key_up, head)
        scores = (nope[:, head] @ keys.T + rotated[:, head] @ shared.T) * np.float32(attrs.scale)
        weights = _softmax(scores, seen)
        out[:, head] = weights @ (latents @ step.weights.member(attrs.value_up, head).T)
        paid += weights
    if step.told:
        step.told(attrs.layer, paid)
    return out.reshape(count, -1)


def _seen(step: Step, group: int, kept: int) -> npt.NDArray[np.bool_]:
    return step.visible(group, step.positions, np.arange(kept, dtype=np.int64))


def _softmax(scores: Array, seen: npt.NDArray[np.bool_]) -> Array:
    """Over the last axis, in place."""
    np.copyto(scores, -np.inf, where=~seen)
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores
