"""The memory and time that distillation takes, told before it begins."""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch

from edge import payload
from edge.errors import OptionError
from edge.graph import Graph
from edge.ops import Linear, Weight
from exporters.calibration import cost
from exporters.distill import learns, places
from exporters.payload_writer import Plan

# Bytes a learned number: itself, its value, two moments, and at times a gradient or another float32 of it.
_LEARNED, _FIXED, _SOURCE = 20, 4, 4
_ACTIVATION = 8  # bytes an activation: itself, and what else its op keeps of it or its gradient
_LOGIT = 20  # of both models: logits, logarithms of probabilities, their difference and gradient
_FIXED_COST = 300_000_000  # torch itself
_OTHERS = 1.4  # times the products of matrices, for everything else
_PROBE, _PROBING = 1024, 0.2  # numbers, seconds


def needed(graph: Graph, plans: Mapping[str, Plan], *, tokens: int, batch: int, vocabulary: int) -> int:
    """Bytes at the most, for `tokens` tokens of samples in all and `batch` in a step."""
    learned = sum(weight.size for weight in graph.weights if not weight.is_matrix or _learns(plans[weight.name]))
    student = learned * _LEARNED + (graph.parameters - learned) * _FIXED
    head = _head(graph)
    states = tokens * head.shape[1] * 4
    activations = batch * (sum(graph.widths.values()) * _ACTIVATION + vocabulary * _LOGIT)
    return max(student + activations, graph.parameters * _SOURCE) + states + _FIXED_COST


def seconds(graph: Graph, *, asked: int, trained: int, vocabulary: int) -> float:
    """About how long it takes on this machine, as fast as it is now, to ask for `asked` tokens and train on `trained`.

    A product with a matrix is 2 operations a number and token; training needs it three times.
    """
    head = _head(graph)
    body = sum(op.attrs.weight.size for group in graph.siblings for op in group) - head.size
    compared = vocabulary * head.shape[1]
    work = 2 * asked * (body + head.size // 8) + 2 * trained * (3 * body + 4 * compared)
    return _OTHERS * work / _speed()


def _speed() -> float:
    """Operations a second of a product of matrices, measured."""
    device = places.chosen()
    x, w = torch.ones(512, _PROBE, device=device), torch.ones(_PROBE, _PROBE, device=device)
    float((x @ w)[0, 0])  # reading a number waits for the device
    count, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < _PROBING:
        float((x @ w)[0, 0])
        count += 1
    return 2 * x.numel() * _PROBE * max(count, 1) / spent


def _head(graph: Graph) -> Weight:
    return next(op.attrs.weight for op in reversed(graph.ops) if isinstance(op.attrs, Linear))


def _learns(plan: Plan) -> bool:
    schemes = (payload.parse_scheme(scheme) for _, scheme in plan.choice.layout.runs)
    return any(learns(scheme, method) for scheme, method in zip(schemes, plan.choice.methods, strict=True))


def check(wanted: int) -> None:
    """Raise OptionError unless so many bytes can be had."""
    found = places.free()
    found = cost.available() if found is None else found
    if found is not None and wanted > found:
        raise OptionError(
            f"effort high takes about {wanted / 1e9:.1f} GB of memory for this model, and {found / 1e9:.1f} GB are "
            "available; free some, export on a larger machine, or ask for effort medium"
        )
