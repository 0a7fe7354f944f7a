"""The ONNX emitter: one reader of the Graph. Straight translation first, then the passes of `onnx_passes`.

The graph takes one sequence's new tokens and leaves the ring's bookkeeping to the host:

    tokens            int64 [1, tokens]
    angle_rows        int64 [1, tokens]                0, 1, …: the row of the angles for each new token
    rows              int64 [rows]                     which of the new tokens' logits are wanted
    rope.R.cos, .sin  float [angles, rotary / 2]       a row for each new token (see edge.rope); at least `total` rows
    ring.G.total      int32 scalar                     rows to attend: those held, then the new ones
    ring.G.last       int32 [1]                        total - 1
    ring.G.bias       float [1, 1, tokens, total]      0 where a query sees a row, -inf or very negative elsewhere
    past.L.key, .value     float [1, kv_heads, capacity, head_dim]
    → logits          float [1, rows, vocab]
    → hidden          float [1, tokens, hidden]        the final norm's output
    → present.L.key, .value                            may share memory with past: new rows follow the held ones

It runs in a plain ONNX Runtime; weights are external data in the payload file beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto

from edge import graph as graphs
from edge.bundle import GraphInfo
from edge.errors import UnsupportedError
from edge.graph import Graph
from edge.ops import Add, Attention, Embed, Gate, Linear, Norm, Op, Rope, Select, Softcap, Weight
from edge.payload import Scheme
from edge.weights import Weights
from exporters.emit import onnx_passes
from exporters.emit.onnx_linear import Choose, Initializers, LinearEmitter
from exporters.emit.onnx_model import CONTRIB, Model

FLOAT, INT64, INT32 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32


def emit(graph: Graph, weights: Weights, path: Path, *, precision: Choose) -> GraphInfo:
    """Write the graph as an ONNX model beside its payload, each linear in the precision that is chosen for it."""
    cut = next((name for name, runs in weights.runs.items() if len(runs) > 1), None)
    if cut is not None:
        raise UnsupportedError(f"the ONNX emitter does not take weights in several runs yet ({cut})")
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
        self._linears = LinearEmitter(graph, self._initializers, precision)
        for op in graph.ops:
            handler = HANDLERS.get(type(op.attrs))
            if handler is None:
                raise UnsupportedError(f"the ONNX emitter does not know op kind {op.kind!r} ({op.output})")
            handler(self, op)
        self.model.add("Identity", (graphs.LOGITS,), "logits")
        self.model.add("Identity", (graphs.HIDDEN,), "hidden")

    def _declare(self) -> None:
        """Inputs and outputs; `_interface` of runtimes/onnx_runtime.py expects just these."""
        spec, model = self.graph.spec, self.model
        model.inputs["tokens"] = (INT64, (1, "tokens"))
        model.inputs["angle_rows"] = (INT64, (1, "tokens"))
        model.inputs["rows"] = (INT64, ("rows",))
        for index, rope in enumerate(spec.ropes):
            for part in ("cos", "sin"):
                model.inputs[f"rope.{index}.{part}"] = (FLOAT, (f"angles.{index}", rope.dim // 2))
        for ring in range(len(spec.kv_groups)):
            model.inputs[f"ring.{ring}.total"] = (INT32, ())
            model.inputs[f"ring.{ring}.last"] = (INT32, (1,))
            model.inputs[f"ring.{ring}.bias"] = (FLOAT, (1, 1, "tokens", f"total.{ring}"))
        model.outputs["logits"] = (FLOAT, (1, "rows", spec.vocab_size))
        model.outputs["hidden"] = (FLOAT, (1, "tokens", spec.hidden_size))
        for index, group in enumerate(spec.layer_groups):
            kv = spec.kv_groups[group]
            for part, dim in (("key", kv.key_dim), ("value", kv.value_dim)):
                shape = (1, kv.kv_heads, f"capacity.{group}", dim)
                model.inputs[f"past.{index}.{part}"] = (FLOAT, shape)
                model.outputs[f"present.{index}.{part}"] = (FLOAT, shape)

    def _embed(self, op: Op[Embed]) -> None:
        weight, path, add = op.attrs.weight, op.output, self.model.add
        scheme, initializers = self._initializers.weights.schemes[weight.name], self._initializers
        columns = weight.shape[1]
        if scheme is None:
            x = add("Gather", (initializers.floats(weight.name), "tokens"), f"{path}/rows")
        else:
            parts = [initializers.span(f"{weight.name}.codes"), "tokens", initializers.floats(f"{weight.name}.scales")]
            if scheme.kind == "zp":
                parts.append(initializers.span(f"{weight.name}.zeros"))
            x = add("GatherBlockQuantized", parts, f"{path}/rows", CONTRIB, bits=scheme.bits,
                    block_size=scheme.group, gather_axis=0, quantize_axis=1)  # fmt: skip
            if scheme.kind == "affine":
                x = self._embed_shift(weight, scheme, x, path)
            if columns % scheme.group:
                bounds = [self.model.constant(f"bound.{n}", [n]) for n in (0, columns, 2)]
                x = add("Slice", (x, *bounds), f"{path}/cut")
        self._rename(x, op.output, op.attrs.scale)

    def _embed_shift(self, weight: Weight, scheme: Scheme, x: str, path: str) -> str:
        add, groups = self.model.add, scheme.groups(weight.shape[1])
        scales, offsets = (self._initializers.floats(f"{weight.name}.{part}") for part in ("scales", "offsets"))
        shift = add(
            "Gather", (self._initializers.shift(weight.name, scales, offsets, scheme), "tokens"), f"{path}/shift"
        )
        split = self.model.constant(f"groups.{groups}.{scheme.group}", [1, -1, groups, scheme.group])
        shift = add("Unsqueeze", (shift, self.model.constant("axis.last", [-1])), f"{path}/shift_column")
        x = add("Add", (add("Reshape", (x, split), f"{path}/grouped"), shift), f"{path}/shifted")
        return add("Reshape", (x, self.model.constant("flat", [0, 0, -1])), f"{path}/flat")

    def _rename(self, x: str, output: str, scale: float) -> None:
        if scale != 1.0:
            self.model.add("Mul", (x, self.model.constant(f"scale.{scale}", scale, np.float32)), output)
        else:
            self.model.add("Identity", (x,), output)

    def _norm(self, op: Op[Norm]) -> None:
        attrs, add = op.attrs, self.model.add
        weight = self._initializers.floats(attrs.weight.name)
        if attrs.offset:
            offset = self.model.constant(f"offset.{attrs.offset}", attrs.offset, np.float32)
            weight = self.model.once("Add", (weight, offset), f"{attrs.weight.name}.offset")
        if attrs.pieces == 1:
            add("RMSNormalization", (op.inputs[0], weight), op.output, axis=-1, epsilon=attrs.eps)
            return
        pieces = self.model.constant(f"heads.{attrs.pieces}.{attrs.dim}", [0, 0, attrs.pieces, attrs.dim])
        x = add("Reshape", (op.inputs[0], pieces), f"{op.output}/heads")
        x = add("RMSNormalization", (x, weight), f"{op.output}/normed", axis=-1, epsilon=attrs.eps)
        add("Reshape", (x, self.model.constant("flat", [0, 0, -1])), op.output)

    def _linear(self, op: Op[Linear]) -> None:
        self._linears.emit(op)

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
