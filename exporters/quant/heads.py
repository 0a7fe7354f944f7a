"""Rounding with second-order feedback within heads: an error costs what it does to the scores of its head.

A row of a query's matrix makes one channel of a head, and errors E of a head's rows change its scores by E x · k.
Their square is tr(B E H Eᵀ) on average, H the second moment of the inputs x and B that of the keys. So rows make up for
errors of other rows, as columns do for those of other columns (BoA, arXiv:2406.13474, has the same objective). Rows
are rounded one block after another, each towards its numbers and the feedback of the blocks before it; within a row all
is as in exporters.quant.gptq, and matrices that make no queries or keys are encoded as there.
"""

from __future__ import annotations

import numpy as np

from edge import payload
from edge.payload import Scheme
from exporters.quant import gptq
from exporters.quant.gptq import Objective
from exporters.quant.method import Array, Parts, Rows, Statistic, Statistics

NEEDS: tuple[Statistic, ...] = ("moment", "heads")
BLOCK = 8  # rows of each head that are rounded together: without feedback among them, for an eighth of the time


def quantize(weight: Rows, scheme: Scheme, statistics: Statistics | None) -> Parts:
    """Codes of these rows, whole heads where there are any, under the moments of their input and their partners."""
    assert statistics is not None
    if statistics.heads is None:
        return gptq.quantize(weight, scheme, statistics)
    return encode(scheme, weight.read(), gptq.objective(statistics), statistics.heads)


def encode(scheme: Scheme, weight: Array, objective: Objective, heads: Array) -> Parts:
    """The parts of rows [heads · head_dim, columns]; `heads` is B of each, [heads, head_dim, head_dim]."""
    count, dim, _ = heads.shape
    weighed = [gptq.damped(head) for head in heads]
    orders = np.stack([np.argsort(-np.diagonal(head), kind="stable") for head in weighed])  # the most important first
    upper = np.stack([gptq.feedback(head, order) for head, order in zip(weighed, orders, strict=True)])
    w = np.take_along_axis(weight.reshape(count, dim, -1), orders[:, :, None], axis=1)
    errors, parts = np.zeros_like(w), Parts()
    for start in range(0, dim, BLOCK):
        now = slice(start, min(start + BLOCK, dim))
        fed = np.einsum("hbr,hbc->hrc", upper[:, :start, now], errors[:, :start], optimize=True)
        aim = np.ascontiguousarray(w[:, now] + fed, np.float32).reshape(-1, w.shape[2])
        found = gptq.encode(scheme, aim, objective)
        errors[:, now] = w[:, now] - payload.dequantize(scheme, found, w.shape[2]).reshape(count, -1, w.shape[2])
        for name, values in found.items():
            whole = parts.setdefault(name, np.empty((count, dim, *values.shape[1:]), values.dtype))
            whole[:, now] = values.reshape(count, -1, *values.shape[1:])
    places = np.argsort(orders, axis=1)[:, :, None]
    return {name: np.take_along_axis(found, places, axis=1).reshape(count * dim, -1) for name, found in parts.items()}
