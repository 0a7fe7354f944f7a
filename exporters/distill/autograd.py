"""The Graph as torch runs it with gradients: the table of evaluators, and the way of samples through some ops.

It computes what the reference does (exporters/reference), over whole samples from their first token on, so nothing is
kept between calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from edge.errors import UnsupportedError
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
from exporters.distill import attention, experts, rows
from exporters.distill.state import Pass

# Attributes of an op → its evaluator: (pass, attributes, inputs) → result, all of them [tokens, width].
EVALUATORS: dict[type[Any], Callable[[Pass, Any, Sequence[Tensor]], Tensor]] = {
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


def check(ops: Sequence[Op[Any]]) -> None:
    """Raise UnsupportedError for an op of a kind that has no evaluator."""
    for op in ops:
        if type(op.attrs) not in EVALUATORS:
            raise UnsupportedError(f"distillation does not know op kind {op.kind!r} ({op.output})")


def run(batch: Pass, ops: Sequence[Op[Any]], values: Mapping[str, Tensor]) -> Tensor:
    """The output of the last of these ops. Raises UnsupportedError for a kind that has no evaluator."""
    check(ops)
    found = dict(values)
    last = {name: index for index, op in enumerate(ops) for name in op.inputs}
    for index, op in enumerate(ops):
        found[op.output] = EVALUATORS[type(op.attrs)](batch, op.attrs, [found[name] for name in op.inputs])
        for name in op.inputs:
            if last[name] == index:
                found.pop(name, None)
    return found[ops[-1].output]
