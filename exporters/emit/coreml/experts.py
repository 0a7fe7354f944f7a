"""Mixtures of experts in MIL: every expert is computed for every row, and those not chosen count 0.

MIL has no product over chosen matrices, so the form is for mixtures that choose a large share of their experts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from edge.ops import Experts, Op, Router
from exporters.emit.coreml.linears import numbers
from exporters.emit.coreml.scope import Scope

if TYPE_CHECKING:
    from exporters.emit.coreml.program import FunctionBuilder

SHARE = 4  # experts for each that is chosen, up to which all are computed
_OUT = -1e30  # the rank of an expert whose group does not compete


def route(build: FunctionBuilder, op: Op[Router]) -> None:
    """The weight of each chosen expert and 0 for the others, float32 [rows, experts]."""
    attrs, scope, path = op.attrs, build.scope, op.output
    logits = scope.take(op.inputs[0], "float32")
    rows, experts = logits.shape
    scores = (
        scope.op("sigmoid", f"{path}/scores", x=logits)
        if attrs.score == "sigmoid"
        else scope.op("softmax", f"{path}/scores", x=logits, axis=-1)
    )
    ranks = scores
    if attrs.bias:
        bias = build.linears.vector(attrs.bias.name)
        ranks = scope.op("add", f"{path}/ranks", x=scores, y=bias)
    if attrs.top_groups < attrs.groups:
        each = experts // attrs.groups
        grouped = scope.reshape(ranks, f"{path}/grouped", (rows, attrs.groups, each))
        best = scope.op(
            "mul", f"{path}/best", x=grouped, y=_largest(scope, grouped, attrs.group_best, f"{path}/in_group")
        )
        sums = scope.op("reduce_sum", f"{path}/sums", x=best, axes=[-1], keep_dims=False)
        rivals = scope.reshape(
            _largest(scope, sums, attrs.top_groups, f"{path}/rivals"), f"{path}/rival", (rows, attrs.groups, 1)
        )
        out = scope.op(
            "mul", f"{path}/out", x=scope.op("sub", f"{path}/others", x=np.float32(1), y=rivals), y=np.float32(_OUT)
        )
        kept = scope.op("mul", f"{path}/kept", x=grouped, y=rivals)
        ranks = scope.reshape(scope.op("add", f"{path}/rivalling", x=kept, y=out), f"{path}/flat", (rows, experts))
    chosen = scope.op("mul", f"{path}/chosen", x=scores, y=_largest(scope, ranks, attrs.top_k, f"{path}/top"))
    if attrs.normalize:
        total = scope.op("reduce_sum", f"{path}/total", x=chosen, axes=[-1], keep_dims=True)
        chosen = scope.op("real_div", f"{path}/normalized", x=chosen, y=total)
    if attrs.scale != 1.0:
        chosen = scope.op("mul", f"{path}/times", x=chosen, y=np.float32(attrs.scale))
    scope.set(path, chosen)


def _largest(scope: Scope, values: Any, count: int, path: str) -> Any:
    """1 for the `count` largest of the last axis and 0 for the others, the first among equals; float32.

    A number is among them if fewer than `count` others are larger, or equal and before it.
    """
    size = values.shape[-1]
    ours = scope.op("expand_dims", f"{path}/ours", x=values, axes=[-1])
    theirs = scope.op("expand_dims", f"{path}/theirs", x=values, axes=[-2])
    larger = scope.op("cast", f"{path}/larger", x=scope.op("greater", f"{path}/gt", x=theirs, y=ours), dtype="fp32")
    equal = scope.op("cast", f"{path}/equal", x=scope.op("equal", f"{path}/eq", x=theirs, y=ours), dtype="fp32")
    before = np.tri(size, k=-1, dtype=np.float32)  # [ours, theirs]: 1 where theirs comes first
    tied = scope.op("mul", f"{path}/tied", x=equal, y=scope.constant(f"before.{size}", numbers(before)))
    ahead = scope.op("add", f"{path}/ahead", x=larger, y=tied)
    place = scope.op("reduce_sum", f"{path}/place", x=ahead, axes=[-1], keep_dims=False)
    return scope.op("cast", path, x=scope.op("less", f"{path}/lt", x=place, y=np.float32(count)), dtype="fp32")


def mix(build: FunctionBuilder, op: Op[Experts]) -> None:
    """Σ routing · down(activation(gate(x)) · up(x)) over all experts, in float32 sums."""
    attrs, scope, path = op.attrs, build.scope, op.output
    dtype = build.linears.width(op)
    count = attrs.gate.shape[0]
    routing = scope.take(op.inputs[1], "float32")
    x = scope.take(op.inputs[0], dtype)
    sides = []
    for part, weight in (("gate", attrs.gate), ("up", attrs.up)):
        sides.append(_each_expert(build, x, weight.name, weight.shape, f"{path}/{part}", dtype == "float32"))
    gate, up = sides
    inner = scope.op("mul", f"{path}/inner", x=build.linears.activate(attrs.activation, gate, f"{path}/active"), y=up)
    outs = _each_expert(build, inner, attrs.down.name, attrs.down.shape, f"{path}/down", dtype == "float32")
    outs = scope.cast(outs, "float32", f"{path}/down_float32")  # [experts, rows, hidden]
    shares = scope.reshape(
        scope.transpose(routing, f"{path}/by_expert", (1, 0)), f"{path}/shares", (count, routing.shape[0], 1)
    )
    weighted = scope.op("mul", f"{path}/weighted", x=outs, y=shares)
    scope.set(path, scope.op("reduce_sum", path, x=weighted, axes=[0], keep_dims=False))


def _each_expert(build: FunctionBuilder, x: Any, name: str, shape: tuple[int, ...], path: str, wide: bool) -> Any:
    """x [rows, columns] or [experts, rows, columns] times the transpose of each expert's matrix."""
    scope = build.scope
    matrix = build.linears.matrix(name, shape, wide=wide)
    x = scope.cast(x, "float32" if scope.dtype(matrix) == "float32" else "float16", f"{path}/cast")
    x = scope.padded(x, f"{path}/in", matrix.shape[-1])
    if len(x.shape) == 2:
        x = scope.op("expand_dims", f"{path}/one", x=x, axes=[0])
    return scope.op("matmul", f"{path}/each", x=x, y=matrix, transpose_y=True)
