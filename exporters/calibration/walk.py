"""The graph cut where statistics are taken, and what runs between two cuts, one sample at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge.graph import TOKENS, Graph
from edge.ops import Op, Select, Weight
from exporters.calibration.inner import stages
from exporters.reference import EVALUATORS
from exporters.reference.state import Array, Positions, Step, Visibility, WeightCache

Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Segment:
    """Ops that run together, up to the input of `group`, which the next segment begins with: sibling linears, or one op
    that has matrices inside.

    needs  values that were made by earlier segments and are used here, the input of `group` among them
    drops  those of them that nothing uses afterwards
    keeps  values that are made here and used later
    """

    ops: tuple[Op[Any], ...]
    group: tuple[Op[Any], ...]
    needs: tuple[str, ...]
    drops: tuple[str, ...]
    keeps: tuple[str, ...]

    @property
    def matrices(self) -> tuple[Weight, ...]:
        """The matrices of the group, those of a linear without its bias."""
        return tuple(weight for op in self.group for weight in op.weights if weight.is_matrix)


def cut(graph: Graph) -> list[Segment]:
    """The segments of a graph, up to the input of the last linears: what comes after needs no statistics."""
    starts: dict[str, tuple[Op[Any], ...]] = {group[0].output: group for group in graph.siblings}
    starts |= {op.output: (op,) for op in graph.ops if stages(op)}
    pieces: list[tuple[list[Op[Any]], tuple[Op[Any], ...]]] = []
    ops: list[Op[Any]] = []
    for op in graph.ops:
        if op.output in starts:
            pieces.append((ops, starts[op.output]))
            ops = []
        ops.append(op)
    segments: list[Segment] = []
    made_before = {TOKENS}
    for index, (piece, group) in enumerate(pieces):
        later = {name for rest, _ in pieces[index + 1 :] for op in rest for name in op.inputs}
        later.update(name for op in group for name in op.inputs)
        made = [op.output for op in piece]
        used = dict.fromkeys(name for op in (*piece, *group[:1]) for name in op.inputs)
        needs = tuple(name for name in used if name in made_before)
        drops = tuple(name for name in needs if name not in later)
        keeps = tuple(name for name in made if name in later)
        segments.append(Segment(tuple(piece), group, needs, drops, keeps))
        made_before.update(made)
    return segments


def run(graph: Graph, segment: Segment, weights: WeightCache, values: Mapping[str, Any]) -> Values:
    """The values that the segment makes of one sample and keeps; the sample is a sequence by itself."""
    found: Values = dict(values)
    length = len(next(iter(values.values())))
    positions = np.arange(length, dtype=np.int64)
    step = Step(graph.spec, weights, positions, {}, by_window(graph), length)
    for op in segment.ops:
        inputs = [found[name] for name in op.inputs]
        if isinstance(op.attrs, Select):  # every row counts here
            found[op.output] = inputs[0]
        else:
            evaluate: Callable[[Step, Any, list[Any]], Array] = EVALUATORS[type(op.attrs)]
            found[op.output] = evaluate(step, op.attrs, inputs)
    return {name: found[name] for name in segment.keeps}


def by_window(graph: Graph) -> Visibility:
    """A query sees itself and the window - 1 positions before it."""

    def visible(group: int, query: Positions, key: Positions) -> np.ndarray:
        distance = query[:, None] - key
        window = graph.spec.kv_groups[group].window
        return (distance >= 0) & (distance < (window if window is not None else np.inf))

    return visible
