"""The largest magnitude of each value of a graph on a text, by the reference: what a narrow float type must hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edge.graph import Graph
from edge.ops import Attention, Op

Array = npt.NDArray[np.float32]


def scores_of(op: Op[Any]) -> str:
    """The name of an attention's scores, which are no value of the Graph."""
    return f"{op.output}/scores"


class Ranges:
    """An observer of the reference: `largest` is the magnitude by value, those of attention scores by `scores_of`."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._wanted = {name for op in graph.ops if isinstance(op.attrs, Attention) for name in op.inputs[:2]}
        self._seen: dict[str, Array] = {}
        self.largest: dict[str, float] = {}

    def __call__(self, op: Op[Any], result: Array) -> None:
        self._raise(op.output, result)
        if op.output in self._wanted:
            self._seen[op.output] = result
        if isinstance(op.attrs, Attention):
            q, k = (self._seen.pop(name) for name in op.inputs[:2])
            self._scores(op, q, k)

    def _raise(self, name: str, values: Array) -> None:
        self.largest[name] = max(self.largest.get(name, 0.0), float(np.abs(values).max(initial=0.0)))

    def _scores(self, op: Op[Attention], q: Array, k: Array) -> None:
        """All products of the new rows, hidden ones too, and the scaled queries alone."""
        attrs = op.attrs
        queries, keys = (
            x.reshape(len(x), -1, attrs.dim) * np.float32(scale) for x, scale in ((q, attrs.scale), (k, 1))
        )
        self._raise(scores_of(op), queries)
        for head in range(attrs.heads):
            self._raise(scores_of(op), queries[:, head] @ keys[:, head * attrs.kv_heads // attrs.heads].T)
