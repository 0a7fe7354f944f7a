"""The reference's mixture of experts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edge.ops import Experts, Router
from exporters.reference.rows import activate
from exporters.reference.state import Array, Step


def route(step: Step, attrs: Router, inputs: Sequence[Array]) -> Array:
    """The weight of each chosen expert and 0 for the others, [tokens, experts]; see `edge.ops.Router` for the rule."""
    logits = inputs[0].astype(np.float64)
    if attrs.score == "sigmoid":
        scores = 1 / (1 + np.exp(-logits))
    else:
        scores = np.exp(logits - logits.max(axis=1, keepdims=True))
        scores /= scores.sum(axis=1, keepdims=True)
    ranks = scores + step.weights.whole(attrs.bias) if attrs.bias else scores
    if attrs.top_groups < attrs.groups:
        grouped = ranks.reshape(len(ranks), attrs.groups, -1)
        best = np.sort(grouped, axis=2)[:, :, -attrs.group_best :].sum(axis=2)
        rivals = _largest(best, attrs.top_groups)
        ranks = np.where(np.repeat(rivals, grouped.shape[2], axis=1), ranks, -np.inf)
    chosen = np.where(_largest(ranks, attrs.top_k), scores, 0.0)
    if attrs.normalize:
        chosen /= chosen.sum(axis=1, keepdims=True)
    return np.asarray(chosen * attrs.scale, np.float32)


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """Which are the `count` largest of each row, the first among equals."""
    order = np.argsort(-values, axis=1, kind="stable")[:, :count]
    found = np.zeros(values.shape, np.bool_)
    np.put_along_axis(found, order, True, axis=1)
    return found


def mix(step: Step, attrs: Experts, inputs: Sequence[Array]) -> Array:
    """The weighted sum of the chosen experts' outputs; an expert that no token chose is not read."""
    x, routing = inputs
    out = np.zeros_like(x)
    for expert in np.flatnonzero(routing.any(axis=0)):
        rows = np.flatnonzero(routing[:, expert])
        gate, up, down = (step.weights.member(weight, int(expert)) for weight in (attrs.gate, attrs.up, attrs.down))
        inner = activate(attrs.activation, x[rows] @ gate.T) * (x[rows] @ up.T)
        out[rows] += routing[rows, expert, None] * (inner @ down.T)
    return out
