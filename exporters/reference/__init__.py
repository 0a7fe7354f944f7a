"""The float32 oracle: a plain numpy interpreter of the Graph, against which every artefact is measured.

It reads weights by canonical name through a callable, so the same code runs a checkpoint's source weights and a
bundle's dequantized ones. Above `KEEP_LIMIT` parameters nothing is kept between uses, and some rows at a time
is in memory. It has no ring: it keeps what every layer keeps of every token and takes visibility from a rule, which
makes it the check of the ring. Its numbers do not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from edge.errors import UnsupportedError
from edge.graph import LOGITS, TOKENS, Graph
from edge.ops import (
    Add,
    Attention,
    Embed,
    Experts,
    Gate,
    LatentAttention,
    Linear,
    Norm,
    Op,
    Rope,
    Router,
    Select,
    Softcap,
)
from exporters import threads
from exporters.reference import attention, experts, rows
from exporters.reference.state import Array, Kept, Positions, Reader, Step, Told, Visibility, WeightCache

__all__ = ["KEEP_LIMIT", "Array", "Observer", "Reader", "Reference", "Visibility"]

KEEP_LIMIT = 1_000_000_000
# Called with the op and its float32 result.
Observer = Callable[[Op[Any], Array], None]

# Attributes of an op → its evaluator: (step, attributes, inputs) → result. `Select` is the caller's choice of rows.
EVALUATORS: dict[type[Any], Callable[[Step, Any, Sequence[Any]], Array]] = {
    Embed: rows.embed,
    Norm: rows.norm,
    Linear: rows.linear,
    Rope: attention.rotate,
    Attention: attention.attend,
    LatentAttention: attention.attend_latents,
    Gate: rows.gate,
    Router: experts.route,
    Experts: experts.mix,
    Add: rows.add,
    Softcap: rows.softcap,
}


class Reference:
    """One sequence through the graph. `run` continues where the last call ended; `reset` starts anew.

    `context` is the number of tokens that the sequence is planned for: some ropes depend on it (see edge.rope).
    `keep` weights between uses: worth their memory when `run` is called more than once; by default up to KEEP_LIMIT.
    """

    def __init__(
        self, graph: Graph, read: Reader, *, visible: Visibility | None = None, context: int = 0,
        keep: bool | None = None,
    ) -> None:  # fmt: skip
        self.graph = graph
        self._context = context
        self._weights = WeightCache(read, keep=graph.parameters <= KEEP_LIMIT if keep is None else keep)
        self._visible = visible or self._by_window
        self._told: Told | None = None
        self.reset()

    def reset(self) -> None:
        self._length = 0
        self._kept: dict[str, Kept] = {}

    def run(
        self,
        tokens: Sequence[int],
        *,
        last: bool = False,
        observe: Observer | None = None,
        attention: Told | None = None,
    ) -> Array:
        """Logits of the new tokens, [tokens, vocab], or of the last one alone, [1, vocab].

        `attention` is told, layer by layer, how much of it each new token pays to every token.
        """
        ids = np.asarray(tokens, np.int64)
        positions = np.arange(self._length, self._length + len(ids), dtype=np.int64)
        with threads.pool() as self._weights.pool:
            self._told = attention
            logits = self._run(ids, positions, last=last, observe=observe)
        self._length += len(ids)
        return logits

    def _run(self, ids: Positions, positions: Positions, *, last: bool, observe: Observer | None) -> Array:
        uses = _last_uses(self.graph)
        values: dict[str, Any] = {TOKENS: ids}
        for index, op in enumerate(self.graph.ops):
            inputs = [values[name] for name in op.inputs]
            if isinstance(op.attrs, Select):
                result = inputs[0][-1:] if last else inputs[0]
            else:
                result = self._evaluate(op, inputs, positions)
            if observe:
                observe(op, result)
            values[op.output] = result
            for name in op.inputs:
                if uses[name] == index:
                    del values[name]
        logits: Array = values[LOGITS]
        return logits

    def _evaluate(self, op: Op[Any], inputs: list[Any], positions: Positions) -> Array:
        evaluator = EVALUATORS.get(type(op.attrs))
        if evaluator is None:
            raise UnsupportedError(f"the reference does not know op kind {op.kind!r} ({op.output})")
        step = Step(self.graph.spec, self._weights, positions, self._kept, self._visible, self._context, self._told)
        return evaluator(step, op.attrs, inputs)

    def _by_window(self, group: int, query: Positions, key: Positions) -> np.ndarray:
        distance = query[:, None] - key
        window = self.graph.spec.kv_groups[group].window
        return (distance >= 0) & (distance < (window if window is not None else np.inf))


def _last_uses(graph: Graph) -> dict[str, int]:
    return {name: index for index, op in enumerate(graph.ops) for name in op.inputs}
