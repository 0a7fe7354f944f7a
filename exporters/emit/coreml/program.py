"""The functions of a Core ML program, built op by op from the Graph.

float32 holds the residual stream: embedding, norms, residual additions, RoPE and whatever has a bias or a soft-cap. The
rest is float16 but for the values in `wide`. So a norm never squares a float16, and a residual stream beyond 65,504 is
no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from edge import coreml_interface
from edge import graph as graphs
from edge.bundle import Bundle
from edge.coreml_interface import Function
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
from exporters.emit.coreml import attention, experts
from exporters.emit.coreml.blobs import Blob
from exporters.emit.coreml.linears import Linears, softcap
from exporters.emit.coreml.matrices import Matrices
from exporters.emit.coreml.scope import Scope
from exporters.emit.coreml.toolkit import Toolkit


class Program:
    """Builds functions of a bundle's graph over one set of constants. `wide` names what must not be float16."""

    sides = staticmethod(coreml_interface.sides)

    def __init__(self, toolkit: Toolkit, bundle: Bundle, wide: Collection[str]) -> None:
        self.toolkit = toolkit
        self.bundle = bundle
        self.matrices = Matrices(bundle.weights)
        self.wide = frozenset(wide)
        self.blobs: dict[str, Blob] = {}

    def build(self, function: Function) -> Any:
        """One function of MIL."""
        scope = Scope(self.toolkit, self.sides(self.bundle.spec, function), self.blobs, self.wide)
        with scope.function:
            return self.translate(function, scope)

    def translate(self, function: Function, scope: Scope) -> Any:
        """All ops of the graph, in a scope that is open."""
        return FunctionBuilder(self, function, scope).build()


class FunctionBuilder:
    """Translates the Graph's ops into one function."""

    def __init__(self, program: Program, function: Function, scope: Scope) -> None:
        self.spec = program.bundle.spec
        self.matrices = program.matrices
        self.function = function
        self.scope = scope
        self.linears = Linears(scope, program.matrices)
        self.kept: dict[str, list[Any]] = {}  # output of new rows → those of each layer of its group
        self._graph = program.bundle.graph

    def build(self) -> Any:
        for op in self._graph.ops:
            HANDLERS[type(op.attrs)](self, op)
        found: dict[str, tuple[str, dict[str, Any]]] = {
            "logits": ("identity", {"x": self.scope.take(graphs.LOGITS, "float16")})
        }
        if self.function.kind == "score":
            found["hidden"] = ("identity", {"x": self.scope.take(graphs.HIDDEN, "float32")})
        for name, rows in self.kept.items():
            found[name] = ("stack", {"values": rows, "axis": 0})
        return self.scope.finish({name: found[name] for name in coreml_interface.outputs(self.spec, self.function)})

    def _embed(self, op: Op[Embed]) -> None:
        weight, scope = op.attrs.weight, self.scope
        matrix = self.linears.matrix(weight.name, weight.shape, wide=False)
        rows = scope.op("gather", f"{op.output}/rows", x=matrix, indices=scope.inputs["tokens"], axis=0)
        if rows.shape[-1] != weight.shape[1]:
            rows = scope.slice(rows, f"{op.output}/unpadded", 1, (0, weight.shape[1]))
        rows = scope.cast(rows, "float32", f"{op.output}/float32")
        if op.attrs.scale != 1.0:
            rows = scope.op("mul", op.output, x=rows, y=np.float32(op.attrs.scale))
        scope.set(op.output, rows)

    def _norm(self, op: Op[Norm]) -> None:
        attrs, scope, path = op.attrs, self.scope, op.output
        x = scope.take(op.inputs[0], "float32")
        if attrs.vectors > 1:
            x = scope.reshape(x, f"{path}/heads", (x.shape[0], attrs.vectors, attrs.dim))
        squares = scope.op("mul", f"{path}/squares", x=x, y=x)
        mean = scope.op("reduce_mean", f"{path}/mean", x=squares, axes=[-1], keep_dims=True)
        factor = scope.op("rsqrt", f"{path}/factor", x=mean, epsilon=np.float32(attrs.eps))
        normed = scope.op("mul", f"{path}/normed", x=x, y=factor)
        weight = self.linears.vector(attrs.weight.name, attrs.offset)
        result = scope.op("mul", path, x=normed, y=weight)
        if attrs.vectors > 1:
            result = scope.reshape(result, f"{path}/flat", (x.shape[0], attrs.vectors * attrs.dim))
        scope.set(path, result)

    def _linear(self, op: Op[Linear]) -> None:
        self.linears.emit(op)

    def _gate(self, op: Op[Gate]) -> None:
        dtype = self.linears.width(op)
        gate, up = (self.scope.take(name, dtype) for name in op.inputs)
        active = self.linears.activate(op.attrs.activation, gate, f"{op.output}/active")
        self.scope.set(op.output, self.scope.op("mul", op.output, x=active, y=up))

    def _add(self, op: Op[Add]) -> None:
        x, y = (self.scope.take(name, "float32") for name in op.inputs)
        self.scope.set(op.output, self.scope.op("add", op.output, x=x, y=y))

    def _select(self, op: Op[Select]) -> None:
        x = self.scope.take(op.inputs[0], "float32")
        if self.function.kind == "prefill":
            x = self.scope.op("gather", op.output, x=x, indices=self.scope.inputs["last"], axis=0)
        self.scope.set(op.output, x)

    def _softcap(self, op: Op[Softcap]) -> None:
        x = self.scope.take(op.inputs[0], "float32")
        self.scope.set(op.output, softcap(self.scope, x, op.attrs.cap, op.output))


# Every kind of op that has a translation.
HANDLERS: dict[type[Any], Callable[[FunctionBuilder, Op[Any]], None]] = {
    Embed: FunctionBuilder._embed,
    Norm: FunctionBuilder._norm,
    Linear: FunctionBuilder._linear,
    Rope: attention.rotate,
    Attention: attention.attend,
    LatentAttention: attention.attend_latents,
    Gate: FunctionBuilder._gate,
    Router: experts.route,
    Experts: experts.mix,
    Add: FunctionBuilder._add,
    Select: FunctionBuilder._select,
    Softcap: FunctionBuilder._softcap,
}
