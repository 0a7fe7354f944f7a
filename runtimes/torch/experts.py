"""The evaluators of a mixture of experts: every token's chosen ones alone are read."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from edge.ops import Experts, Router
from runtimes.torch.rows import activate
from runtimes.torch.state import State


def route(state: State, attrs: Router, inputs: Sequence[Tensor]) -> Tensor:
    """The weight of each chosen expert and 0 for the others, [tokens, experts]; see `edge.ops.Router` for the rule.

    In float64 where the device has it.
    """
    (x,) = inputs
    logits = x.float() if x.device.type == "mps" else x.double()
    scores = logits.sigmoid() if attrs.score == "sigmoid" else logits.softmax(dim=1)
    ranks = scores + state.weights.vectors[attrs.bias.name] if attrs.bias else scores
    if attrs.top_groups < attrs.groups:
        grouped = ranks.view(len(ranks), attrs.groups, -1)
        best = grouped.sort(dim=2).values[:, :, -attrs.group_best :].sum(dim=2)
        rivals = _largest(best, attrs.top_groups).repeat_interleave(grouped.shape[2], dim=1)
        ranks = ranks.masked_fill(~rivals, -torch.inf)
    chosen = scores * _largest(ranks, attrs.top_k)
    if attrs.normalize:
        chosen = chosen / chosen.sum(dim=1, keepdim=True)
    return (chosen * attrs.scale).float()


def _largest(values: Tensor, count: int) -> Tensor:
    """Which are the `count` largest of each row, the first among equals."""
    order = values.sort(dim=1, descending=True, stable=True).indices[:, :count]
    return torch.zeros_like(values, dtype=torch.bool).scatter(1, order, True)


def mix(state: State, attrs: Experts, inputs: Sequence[Tensor]) -> Tensor:
    """The weighted sum of the chosen experts' outputs."""
    x, routing = inputs
    gates, ups, downs = (state.weights.stacks[weight.name] for weight in (attrs.gate, attrs.up, attrs.down))
    if state.step.fixed:
        weights, chosen = routing.topk(state.weights.chosen[attrs.gate.name], dim=1)
        index, rows = chosen.flatten(), x.repeat_interleave(chosen.shape[1], dim=0)
        inner = activate(attrs.activation, gates.of_rows(rows, index)) * ups.of_rows(rows, index)
        found = downs.of_rows(inner, index).view(*chosen.shape, -1)
        return (found * weights[..., None]).sum(dim=1)
    out = torch.zeros_like(x)
    for expert in routing.any(dim=0).nonzero()[:, 0].tolist():
        rows = routing[:, expert].nonzero()[:, 0]
        inner = activate(attrs.activation, gates.times(x[rows], expert)) * ups.times(x[rows], expert)
        out.index_add_(0, rows, routing[rows, expert, None] * downs.times(inner, expert))
    return out
