"""The evaluators of rotary embedding and attention: both kinds are one product of queries with what a layer keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from edge.ops import Attention, LatentAttention, Rope
from runtimes.torch.kv import Kept, rotated
from runtimes.torch.state import State
from runtimes.torch.step import View


def rotate(state: State, attrs: Rope, inputs: Sequence[Tensor]) -> Tensor:
    (x,) = inputs
    heads = x.view(len(x), attrs.heads, attrs.dim)
    rotary = rotated(heads[..., : attrs.rotary], *state.step.angles[attrs.rope])
    return torch.cat([rotary, heads[..., attrs.rotary :]], dim=-1).view(x.shape)


@dataclass(frozen=True, slots=True)
class Mixing:
    """What queries of a layer do with what it keeps: scores of scale · q · k, bounded by `softcap` if there is one."""

    layer: int
    group: int
    scale: float
    softcap: float | None = None


def attend(state: State, attrs: Attention, inputs: Sequence[Tensor]) -> Tensor:
    q, k, v = (x.view(len(x), -1, attrs.dim) for x in inputs)
    found = _mixed(state, Mixing(attrs.layer, attrs.group, attrs.scale, attrs.softcap), q, k, v)
    return found.reshape(len(q), -1)


def attend_latents(state: State, attrs: LatentAttention, inputs: Sequence[Tensor]) -> Tensor:
    """In its absorbed form: queries are brought to the latents, and what they mix is brought back to each head."""
    q_nope, q_rope, latent, k_rope = inputs
    count, heads = len(latent), attrs.heads
    key_up, value_up = (state.weights.stacks[weight.name] for weight in (attrs.key_up, attrs.value_up))
    nope = q_nope.view(count, heads, attrs.nope_dim).transpose(0, 1)
    absorbed = key_up.each(nope).transpose(0, 1)
    queries = torch.cat([q_rope.view(count, heads, attrs.rope_dim), absorbed], dim=-1)
    keys = torch.cat([k_rope, latent], dim=-1)[:, None]
    mixed = _mixed(state, Mixing(attrs.layer, attrs.group, attrs.scale), queries, keys, None)
    return value_up.each(mixed.transpose(0, 1)).transpose(0, 1).reshape(count, -1)


def _mixed(state: State, mixing: Mixing, q: Tensor, keys: Tensor, values: Tensor | None) -> Tensor:
    """Keep the new rows, and give what each query mixes of those that it sees: float32 [rows, heads, value]."""
    exchange = state.pool.exchange(mixing.layer, state.step.rings[mixing.group], keys, values)
    kept = state.pool.kept[mixing.layer]
    parts = [_of_view(mixing, kept, view, q[view.first : view.first + view.count], seen) for view, *seen in exchange]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _of_view(mixing: Mixing, kept: Kept, view: View, q: Tensor, seen: Sequence[Tensor]) -> Tensor:
    """A query head attends to its group's keys. Of single tokens the group's heads are rows of one product."""
    keys, values = (x.transpose(1, 2) for x in seen)  # [sequences, kv heads, length, …]
    if keys.device.type == "cpu":  # where float16 has no fast arithmetic
        keys, values = keys.float(), values.float()
    rows = view.count // view.sequences
    q = q.to(keys.dtype).view(view.sequences, rows, kept.heads, -1, kept.key)  # heads of a group last but one
    if rows == 1:
        found = _product(mixing, q[:, 0], keys, values, view.mask)
        return found.reshape(view.count, -1, kept.value).float()
    assert view.sequences == 1
    q = q[0].permute(1, 2, 0, 3)  # [kv heads, heads of a group, rows, key]
    keys, values = (x[0][:, None].expand(-1, q.shape[1], -1, -1) for x in (keys, values))
    found = _product(mixing, q, keys, values, view.mask)
    return found.permute(2, 0, 1, 3).reshape(view.count, -1, kept.value).float()


def _product(mixing: Mixing, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """softmax(scores) · values over the last two dimensions."""
    scale, cap = mixing.scale, mixing.softcap
    if not cap:
        return functional.scaled_dot_product_attention(q, keys, values, mask, scale=scale)
    scores = cap * torch.tanh(q @ keys.transpose(2, 3) * (scale / cap))
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return scores.softmax(dim=-1) @ values
