"""The time and memory that a calibration takes, told before it begins, and the memory that there is."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from edge.cgroups import read_text
from edge.errors import OptionError
from edge.graph import Graph
from edge.memory import memory_limit
from edge.ops import Experts, Weight
from exporters.calibration import spill
from exporters.payload_writer import Plan
from exporters.quant import gptq
from exporters.quant.method import find

_BASE = 300_000_000  # bytes: Python, numpy, tokenizer and what is read of a file at a time
_AT_ONCE = 8  # samples that are worked on, each with a few values of the widest kind
_VALUES = 4
_ROUNDS = 1 + 2 * gptq.ROUNDS  # products of errors with a moment: the feedback, then twice a round of descent
_OTHERS = 2.0  # times the products of matrices, for everything else
_PROBE, _PROBING = 512, 0.1  # numbers, seconds


def memory(graph: Graph, plans: Mapping[str, Plan], samples: Sequence[Sequence[int]]) -> int:
    """Bytes at the most: statistics of the widest matrix, a layer's weights twice, and the samples' values."""
    counted = [weight for weight in graph.weights if _needs(plans[weight.name])]
    widest = max((weight.shape[-1] for weight in counted), default=0)
    statistics = max(map(_statistics, counted), default=0)
    matrices = [sum(op.attrs.weight.size for op in group) for group in graph.siblings[:-1]]
    weights = 4 * 3 * max(matrices, default=0)
    tokens, length = sum(map(len, samples)), max(map(len, samples))
    hidden = graph.spec.hidden_size
    values = min(spill.LIMIT, 2 * tokens * hidden * 4) + _AT_ONCE * _VALUES * length * max(widest, hidden) * 4
    seen = min(tokens, graph.spec.vocab_size) * hidden * 4
    return statistics + weights + values + seen + _BASE


def seconds(graph: Graph, plans: Mapping[str, Plan], samples: Sequence[Sequence[int]]) -> float:
    """About how long it takes on this machine, as fast as it is now."""
    tokens = sum(map(len, samples))
    work = 2.0 * tokens * _experts_a_token(graph)
    groups = graph.siblings
    for group in groups:
        columns = group[0].attrs.weight.shape[1]
        numbers = sum(op.attrs.weight.size for op in group)
        if group is not groups[-1]:  # the head's output is of no use
            work += 2.0 * tokens * numbers
        if any(_needs(plans[op.attrs.weight.name]) for op in group):
            work += tokens * columns**2 + columns**3 / 3 + 2.0 * _ROUNDS * numbers * columns
    for weight in graph.weights:
        if len(weight.shape) == 3 and _needs(plans[weight.name]):
            count, _, columns = weight.shape
            work += count * columns**3 / 3 + 2.0 * _ROUNDS * weight.size * columns
    return _OTHERS * work / _speed()


def foretell(graph: Graph, plans: Mapping[str, Plan], samples: Sequence[Sequence[int]]) -> str:
    """Both, in words. Raises OptionError where memory does not suffice."""
    needed, found = memory(graph, plans, samples), available()
    if found is not None and needed > found:
        raise OptionError(
            f"calibration takes about {needed / 1e9:.1f} GB of memory for this model, and {found / 1e9:.1f} GB are "
            "available; free some, export on a larger machine, or ask for effort none"
        )
    return f"about {_minutes(seconds(graph, plans, samples))} and at most {needed / 1e9:.1f} GB of memory"


def available() -> int | None:
    """Bytes that this process can get: what is free on Linux, all that there is elsewhere; None where none is told."""
    free = [
        int(line.split()[1]) * 1024
        for line in read_text(Path("/proc/meminfo")).splitlines()
        if line.startswith("MemAvailable:")
    ]
    if not free and hasattr(os, "sysconf"):  # absent on Windows
        free = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    limit = memory_limit()
    return min(free if limit is None else [*free, limit], default=None)


def _statistics(weight: Weight) -> int:
    """Bytes of a matrix's moment and what is worked out of it; of a stack's moments, and that of those in work."""
    square = weight.shape[-1] ** 2 * 4
    worked_out = (2 + 2 * (weight.shape[-1] <= gptq.EXACT)) * square
    return square + worked_out if len(weight.shape) == 2 else weight.shape[0] * square + _AT_ONCE * worked_out


def _needs(plan: Plan) -> bool:
    return any(find(method).NEEDS for method in plan.choice.methods)


def _experts_a_token(graph: Graph) -> float:
    """How many numbers of experts' matrices a token is multiplied with."""
    total = 0.0
    for op in graph.ops:
        if isinstance(op.attrs, Experts):
            total += sum(weight.size // weight.shape[0] for weight in op.weights) * graph.experts_chosen(op)
    return total


def _minutes(spent: float) -> str:
    if spent < 90:
        return f"{max(1, round(spent))} seconds"
    return f"{round(spent / 60)} minutes" if spent < 5400 else f"{spent / 3600:.1f} hours"


def _speed() -> float:
    """Operations a second of a product of matrices, measured."""
    x = np.ones((_PROBE, _PROBE), np.float32)
    x @ x
    count, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < _PROBING:
        x @ x
        count += 1
    return 2 * _PROBE**3 * max(count, 1) / spent
