"""The ONNX emitter: one reader of the Graph. Straight translation first, then the passes of `onnx_passes`.

The inputs and outputs are described in edge/onnx_interface.py. The model runs in a plain ONNX Runtime; weights are
external data in the payload file beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto

from edge import graph as graphs
from edge import onnx_interface
from edge.bundle import GraphInfo
from edge.errors import UnsupportedError
from edge.graph import Graph
from edge.ops import Add, Attention, Embed, Gate, Linear, Norm, Op, Rope, Select, Softcap
from edge.weights import Weights
from exporters.emit import onnx_passes
from exporters.emit.onnx_embed import EmbedEmitter
from exporters.emit.onnx_linear import Choose, Initializers, LinearEmitter
from exporters.emit.onnx_model import CONTRIB, Model

_TYPES = {"float": TensorProto.FLOAT, "int64": TensorProto.INT64, "int32": TensorProto.INT32}


def emit(graph: Graph, weights: Weights, path: Path, *, precision: Choose) -> GraphInfo:
    """Write the graph as an ONNX model beside its payload, each linear in the precision that is chosen for it.

    Raises UnsupportedError for an op that has no translation.
    """
    model = _Emitter(graph, weights, precision).model
    onnx_passes.run(model)
    model.write(path)
    chosen: dict[str, str] = {op.output: precision(op.attrs.weight) for op in graph.ops if isinstance(op.attrs, Linear)}
    return GraphInfo(path.name, "onnx", chosen, tuple(model.inputs), tuple(model.outputs))


class _Emitter:
    """Translates ops one by one. Value names are the Graph's own; a weight's initializers are named after it."""

    def __init__(self, graph: Graph, weights: Weights, precision: Choose) -> None:
        self.graph = graph
        self.model = Model(graph.spec.family)
        self._initializers = Initializers(self.model, weights)
        self._declare()
        self._embeds = EmbedEmitter(self._initializers)
        self._linears = LinearEmitter(graph, self._initializers, precision)
        for op in graph.ops:
            handler = HANDLERS.get(type(op.attrs))
            if handler is None:
                raise UnsupportedError(f"the ONNX emitter does not know op kind {op.kind!r} ({op.output})")
            handler(self, op)
        self.model.add("Identity", (graphs.LOGITS,), "logits")
        self.model.add("Identity", (graphs.HIDDEN,), "hidden")

    def _declare(self) -> None:
        """Inputs and outputs."""
        for declared, values in (
            (self.model.inputs, onnx_interface.inputs(self.graph.spec)),
            (self.model.outputs, onnx_interface.outputs(self.graph.spec)),
        ):
            declared.update({name: (_TYPES[value.type], value.shape) for name, value in values.items()})

    def _embed(self, op: Op[Embed]) -> None:
        self._embeds.emit(op)

    def _linear(self, op: Op[Linear]) -> None:
        self._linears.emit(op)

    def _norm(self, op: Op[Norm]) -> None:
        attrs, add = op.attrs, self.model.add
        weight = self._initializers.floats(attrs.weight.name)
        if attrs.offset:
            offset = self.model.constant(f"offset.{attrs.offset}", attrs.offset, np.float32)
            weight = self.model.once("Add", (weight, offset), f"{attrs.weight.name}.offset")
        if attrs.vectors == 1:
            add("RMSNormalization", (op.inputs[0], weight), op.output, axis=-1, epsilon=attrs.eps)
            return
        heads = self.model.constant(f"heads.{attrs.vectors}.{attrs.dim}", [0, 0, attrs.vectors, attrs.dim])
        x = add("Reshape", (op.inputs[0], heads), f"{op.output}/heads")
        x = add("RMSNormalization", (x, weight), f"{op.output}/normed", axis=-1, epsilon=attrs.eps)
        add("Reshape", (x, self.model.constant("flat", [0, 0, -1])), op.output)

    def _rope(self, op: Op[Rope]) -> None:
        attrs = op.attrs
        inputs = (op.inputs[0], "angle_rows", f"rope.{attrs.rope}.cos", f"rope.{attrs.rope}.sin")
        rotary = 0 if attrs.rotary == attrs.dim else attrs.rotary
        self.model.add(
            "RotaryEmbedding", inputs, op.output, CONTRIB, num_heads=attrs.heads, rotary_embedding_dim=rotary
        )

    def _attention(self, op: Op[Attention]) -> None:
        attrs = op.attrs
        past = [f"past.{attrs.layer}.key", f"past.{attrs.layer}.value"]
        ring = f"ring.{attrs.group}"
        inputs = [*op.inputs, *past, f"{ring}.last", f"{ring}.total", "", "", "", f"{ring}.bias"]
        outputs = [op.output, f"present.{attrs.layer}.key", f"present.{attrs.layer}.value"]
        self.model.add("GroupQueryAttention", inputs, outputs, CONTRIB, num_heads=attrs.heads,
                       kv_num_heads=attrs.kv_heads, scale=attrs.scale, softcap=attrs.softcap or 0.0)  # fmt: skip

    def _gate(self, op: Op[Gate]) -> None:
        gate, up = op.inputs
        if op.attrs.activation == "silu":
            x = self.model.add("QuickGelu", (gate,), f"{op.output}/silu", CONTRIB, alpha=1.0)
        else:
            x = self.model.add("Gelu", (gate,), f"{op.output}/gelu", approximate="tanh")
        self.model.add("Mul", (x, up), op.output)

    def _add(self, op: Op[Add]) -> None:
        self.model.add("Add", op.inputs, op.output)

    def _select(self, op: Op[Select]) -> None:
        self.model.add("Gather", (op.inputs[0], "rows"), op.output, axis=1)

    def _softcap(self, op: Op[Softcap]) -> None:
        cap = self.model.constant(f"cap.{op.attrs.cap}", op.attrs.cap, np.float32)
        x = self.model.add("Div", (op.inputs[0], cap), f"{op.output}/scaled")
        x = self.model.add("Tanh", (x,), f"{op.output}/tanh")
        self.model.add("Mul", (x, cap), op.output)


# Every kind of op that has a translation.
HANDLERS: dict[type[Any], Callable[[_Emitter, Op[Any]], None]] = {
    Embed: _Emitter._embed,
    Norm: _Emitter._norm,
    Linear: _Emitter._linear,
    Rope: _Emitter._rope,
    Attention: _Emitter._attention,
    Gate: _Emitter._gate,
    Add: _Emitter._add,
    Select: _Emitter._select,
    Softcap: _Emitter._softcap,
}
