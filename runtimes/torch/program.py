"""The Graph as this runtime runs it: the table of evaluators, and one pass over the ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from edge.errors import UnsupportedError
from edge.graph import HIDDEN, LOGITS, TOKENS, Graph
from edge.ops import (
    Add,
    Attention,
    Embed,
    Experts,
    Gate,
    LatentAttention,
    Linear,
    Norm,
    Rope,
    Router,
    Select,
    Softcap,
)
from runtimes.torch import attention, experts, rows
from runtimes.torch.state import State

# Attributes of an op → its evaluator: (state, attributes, inputs) → result, all of them [rows, width] in float32.
EVALUATORS: dict[type[Any], Callable[[State, Any, Sequence[Tensor]], Tensor]] = {
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
    Select: rows.select,
    Softcap: rows.softcap,
}


class Program:
    """The ops of a Graph in order. Raises UnsupportedError for one that has no evaluator."""

    def __init__(self, graph: Graph) -> None:
        for op in graph.ops:
            if type(op.attrs) not in EVALUATORS:
                raise UnsupportedError(f"the torch runtime does not know op kind {op.kind!r} ({op.output})")
        self._ops, self._vocab = graph.ops, graph.spec.vocab_size
        self._last = {name: index for index, op in enumerate(graph.ops) for name in op.inputs}

    def run(self, state: State, *, hidden: bool = False) -> Tensor:
        """Logits of the wanted rows, [wanted, vocab]; with `hidden` the final norm's output of all, [rows, hidden]."""
        values = {TOKENS: state.step.tokens}
        end = HIDDEN if hidden else LOGITS
        for index, op in enumerate(self._ops):
            values[op.output] = EVALUATORS[type(op.attrs)](state, op.attrs, [values[name] for name in op.inputs])
            if op.output == end:
                break
            if isinstance(op.attrs, Select) and not len(values[op.output]):
                return values[op.output].new_empty(0, self._vocab)
            for name in op.inputs:
                if self._last[name] == index:
                    values.pop(name, None)
        return values[end]
