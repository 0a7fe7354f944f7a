"""The differentiable rotary embedding and attention, grouped or over latents."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from edge.ops import Attention, LatentAttention, Rope
from exporters.distill.state import Pass


def rotate(batch: Pass, attrs: Rope, inputs: Sequence[Tensor]) -> Tensor:
    """Rotate number i of each head with number i + rotary/2, by its position's angle."""
    (x,) = inputs
    cos, sin = batch.angles(attrs.rope)
    heads = x.view(batch.samples, batch.length, attrs.heads, attrs.dim)
    half = attrs.rotary // 2
    a, b = heads[..., :half], heads[..., half : attrs.rotary]
    turned = [a * cos - b * sin, b * cos + a * sin, heads[..., attrs.rotary :]]
    return torch.cat(turned, dim=-1).view(x.shape)


def attend(batch: Pass, attrs: Attention, inputs: Sequence[Tensor]) -> Tensor:
    """Grouped-query attention within each sample. q [n, heads * dim]; k, v [n, kv_heads * dim]."""
    q, k, v = (_by_head(batch, x, attrs.dim) for x in inputs)
    group = attrs.heads // attrs.kv_heads
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    if attrs.softcap:
        scores = attrs.softcap * torch.tanh(q @ k.transpose(2, 3) * (attrs.scale / attrs.softcap))
        return _joined(_softmax(batch, attrs.group, scores) @ v)
    seen = batch.visible(attrs.group)
    found = functional.scaled_dot_product_attention(q, k, v, seen, is_causal=seen is None, scale=attrs.scale)
    return _joined(found)


def attend_latents(batch: Pass, attrs: LatentAttention, inputs: Sequence[Tensor]) -> Tensor:
    """Latent attention in its expanded form: each head's keys and values are made from the latents."""
    q_nope, q_rope, latent, k_rope = inputs
    key_up, value_up = batch.weights(attrs.key_up), batch.weights(attrs.value_up)
    latents = latent.view(batch.samples, 1, batch.length, attrs.latent_dim)
    shared = k_rope.view(batch.samples, 1, batch.length, attrs.rope_dim)
    keys, values = latents @ key_up, latents @ value_up.transpose(1, 2)  # [samples, heads, length, dim]
    scores = _by_head(batch, q_nope, attrs.nope_dim) @ keys.transpose(2, 3)
    scores = scores + _by_head(batch, q_rope, attrs.rope_dim) @ shared.transpose(2, 3)
    return _joined(_softmax(batch, attrs.group, scores * attrs.scale) @ values)


def _by_head(batch: Pass, x: Tensor, dim: int) -> Tensor:
    """[tokens, heads * dim] → [samples, heads, length, dim]"""
    return x.view(batch.samples, batch.length, -1, dim).transpose(1, 2)


def _joined(x: Tensor) -> Tensor:
    """[samples, heads, length, dim] → [tokens, heads * dim]"""
    samples, heads, length, dim = x.shape
    return x.transpose(1, 2).reshape(samples * length, heads * dim)


def _softmax(batch: Pass, group: int, scores: Tensor) -> Tensor:
    seen = batch.visible(group)
    if seen is None:
        seen = torch.ones(batch.length, batch.length, dtype=torch.bool, device=scores.device).tril()
    return scores.masked_fill(~seen, -torch.inf).softmax(dim=-1)
