"""The differentiable mixture of experts: gradients reach the scores of the chosen experts, not the choice."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from edge.ops import Experts, Router
from exporters.distill.rows import activate
from exporters.distill.state import Pass


def route(batch: Pass, attrs: Router, inputs: Sequence[Tensor]) -> Tensor:
    """The weight of each chosen expert and 0 for the others, [tokens, experts]; see `edge.ops.Router` for the rule."""
    logits = inputs[0].double()
    scores = logits.sigmoid() if attrs.score == "sigmoid" else logits.softmax(dim=1)
    ranks = scores.detach()
    if attrs.bias:
        ranks = ranks + batch.weights(attrs.bias).detach()
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


def mix(batch: Pass, attrs: Experts, inputs: Sequence[Tensor]) -> Tensor:
    """The weighted sum of the chosen experts' outputs; an expert that no token chose is not computed."""
    x, routing = inputs
    gates, ups, downs = (batch.weights(weight) for weight in (attrs.gate, attrs.up, attrs.down))
    out = torch.zeros_like(x)
    for expert in routing.any(dim=0).nonzero()[:, 0].tolist():
        rows = routing[:, expert].nonzero()[:, 0]
        inner = activate(attrs.activation, x[rows] @ gates[expert].T) * (x[rows] @ ups[expert].T)
        out = out.index_add(0, rows, routing[rows, expert, None] * (inner @ downs[expert].T))
    return out
