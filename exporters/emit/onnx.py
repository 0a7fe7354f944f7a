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

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from onnx import TensorProto

from edge import graph as graphs
from edge.bundle import GraphInfo
from edge.errors import UnsupportedError
from edge.graph import Graph, Op, Weight
from edge.payload import Scheme
from edge.weights import Weights
from exporters.emit import onnx_passes
from exporters.emit.onnx_model import CONTRIB, Model, Node, Span

FLOAT, INT64, INT32 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32


# How a linear's input is taken: "int8" a block of 32 at a time (accuracy level 4), "int16" as the sum of two int8
# parts (as exact as float to four digits at little more than int8's cost), "float" as it is (accuracy level 0).
Precision = Literal["int8", "int16", "float"]
Choose = Callable[[Op], Precision]


def emit(graph: Graph, weights: Weights, path: Path, *, precision: Choose) -> GraphInfo:
    """Write the graph as an ONNX model beside its payload, each linear in the precision that is chosen for it."""
    model = _Emitter(graph, weights, precision).model
    onnx_passes.run(model)
    model.write(path)
    chosen: dict[str, str] = {op.output: precision(op) for op in graph.ops if op.kind == "linear"}
    return GraphInfo(path.name, "onnx", chosen, tuple(model.inputs), tuple(model.outputs))


class _Emitter:
    """Translates ops one by one. Value names are the Graph's own; a weight's initializers are named after it."""

    def __init__(self, graph: Graph, weights: Weights, precision: Choose) -> None:
        self.graph = graph
        self.weights = weights
        self.precision = precision
        self._folded: set[str] = set()
        self._siblings = {op.output: group for group in graph.siblings for op in group}
        self.model = Model(graph.spec.family)
        self._declare()
        handlers: dict[str, Callable[[Op], None]] = {
            "embed": self._embed,
            "norm": self._norm,
            "linear": self._linear,
            "rope": self._rope,
            "attention": self._attention,
            "gate": self._gate,
            "add": self._add,
            "select": self._select,
            "softcap": self._softcap,
        }
        for op in graph.ops:
            if op.kind not in handlers:
                raise UnsupportedError(f"the ONNX emitter does not know op kind {op.kind!r} ({op.output})")
            handlers[op.kind](op)
        self.model.add("Identity", (graphs.LOGITS,), "logits")
        self.model.add("Identity", (graphs.HIDDEN,), "hidden")

    def _declare(self) -> None:
        spec, model = self.graph.spec, self.model
        model.inputs["tokens"] = (INT64, (1, "tokens"))
        model.inputs["angle_rows"] = (INT64, (1, "tokens"))
        model.inputs["rows"] = (INT64, ("rows",))
        for index, rope in enumerate(spec.ropes):
            for part in ("cos", "sin"):
                model.inputs[f"rope.{index}.{part}"] = (FLOAT, (f"angles.{index}", rope.dim // 2))
        for ring in range(len(spec.windows)):
            model.inputs[f"ring.{ring}.total"] = (INT32, ())
            model.inputs[f"ring.{ring}.last"] = (INT32, (1,))
            model.inputs[f"ring.{ring}.bias"] = (FLOAT, (1, 1, "tokens", f"total.{ring}"))
        model.outputs["logits"] = (FLOAT, (1, "rows", spec.vocab_size))
        model.outputs["hidden"] = (FLOAT, (1, "tokens", spec.hidden_size))
        for index, layer in enumerate(spec.layers):
            shape = (1, spec.kv_heads, f"capacity.{spec.windows.index(layer.window)}", spec.head_dim)
            for part in ("key", "value"):
                model.inputs[f"past.{index}.{part}"] = (FLOAT, shape)
                model.outputs[f"present.{index}.{part}"] = (FLOAT, shape)

    def _span(self, tensor: str, shape: tuple[int, ...] | None = None) -> str:
        """An initializer over a tensor of the payload, seen in another shape where one is given."""
        info = self.weights.info(tensor)
        self.model.spans[tensor] = Span(info.dtype, shape or info.shape, info.start)
        return tensor

    def _float(self, tensor: str) -> str:
        """The tensor as float32: ONNX Runtime folds the Cast when it loads the model."""
        self._span(tensor)
        if self.model.spans[tensor].dtype == "F32":
            return tensor
        return self._once("Cast", (tensor,), f"{tensor}.f32", to=FLOAT)

    def _once(self, op: str, inputs: tuple[str, ...], output: str, **attributes: Any) -> str:
        """A node over initializers only, before all others and made once however many ops share it (a tied head)."""
        if output not in self._folded:
            self.model.nodes.insert(len(self._folded), Node(op, inputs, (output,), "", attributes))
            self._folded.add(output)
        return output

    def _scheme(self, weight: Weight | None) -> tuple[Weight, Scheme | None]:
        assert weight is not None
        return weight, self.weights.schemes[weight.name]

    def _shift(self, name: str, scales: str, offsets: str, scheme: Scheme) -> str:
        """affine's correction [rows, groups]: offset + zero * scale, so that codes may be taken as symmetric."""
        zero = self.model.constant(f"zero.{scheme.zero}", scheme.zero, np.float32)
        scaled = self._once("Mul", (scales, zero), f"{name}.scaled")
        return self._once("Add", (offsets, scaled), f"{name}.shift")

    def _embed(self, op: Op) -> None:
        weight, scheme = self._scheme(op.weight)
        path, add = op.output, self.model.add
        columns = weight.shape[1]
        if scheme is None:
            x = add("Gather", (self._float(weight.name), "tokens"), f"{path}/rows")
        else:
            parts = [self._span(f"{weight.name}.codes"), "tokens", self._float(f"{weight.name}.scales")]
            if scheme.kind == "zp":
                parts.append(self._span(f"{weight.name}.zeros"))
            x = add("GatherBlockQuantized", parts, f"{path}/rows", CONTRIB, bits=scheme.bits,
                    block_size=scheme.group, gather_axis=0, quantize_axis=1)  # fmt: skip
            if scheme.kind == "affine":
                x = self._embed_shift(weight, scheme, x, path)
            if columns % scheme.group:
                bounds = [self.model.constant(f"bound.{n}", [n]) for n in (0, columns, 2)]
                x = add("Slice", (x, *bounds), f"{path}/cut")
        self._rename(x, op.output, op.scale)

    def _embed_shift(self, weight: Weight, scheme: Scheme, x: str, path: str) -> str:
        add, groups = self.model.add, scheme.groups(weight.shape[1])
        scales, offsets = (self._float(f"{weight.name}.{part}") for part in ("scales", "offsets"))
        shift = add("Gather", (self._shift(weight.name, scales, offsets, scheme), "tokens"), f"{path}/shift")
        split = self.model.constant(f"groups.{groups}.{scheme.group}", [1, -1, groups, scheme.group])
        shift = add("Unsqueeze", (shift, self.model.constant("axis.last", [-1])), f"{path}/shift_column")
        x = add("Add", (add("Reshape", (x, split), f"{path}/grouped"), shift), f"{path}/shifted")
        return add("Reshape", (x, self.model.constant("flat", [0, 0, -1])), f"{path}/flat")

    def _rename(self, x: str, output: str, scale: float) -> None:
        if scale != 1.0:
            self.model.add("Mul", (x, self.model.constant(f"scale.{scale}", scale, np.float32)), output)
        else:
            self.model.add("Identity", (x,), output)

    def _norm(self, op: Op) -> None:
        assert op.weight is not None
        weight, add = self._float(op.weight.name), self.model.add
        if op.offset:
            offset = self.model.constant(f"offset.{op.offset}", op.offset, np.float32)
            weight = self._once("Add", (weight, offset), f"{op.weight.name}.offset")
        if op.heads == 1:
            add("RMSNormalization", (op.inputs[0], weight), op.output, axis=-1, epsilon=op.eps)
            return
        pieces = self.model.constant(f"heads.{op.heads}.{op.dim}", [0, 0, op.heads, op.dim])
        x = add("Reshape", (op.inputs[0], pieces), f"{op.output}/heads")
        x = add("RMSNormalization", (x, weight), f"{op.output}/normed", axis=-1, epsilon=op.eps)
        add("Reshape", (x, self.model.constant("flat", [0, 0, -1])), op.output)

    def _linear(self, op: Op) -> None:
        """Emit the siblings of an op as one matrix where their payload lies side by side, then take it apart."""
        group = self._siblings[op.output]
        if op is not group[0]:
            return
        joined = self._joined(group) if len(group) > 1 else None
        if joined is None:
            for each in group:
                self._matrix([each], each.output)
            return
        whole = "+".join(each.output for each in group)
        self._matrix(group, whole)
        sizes = [each.weight.shape[0] for each in group if each.weight]
        split = self.model.constant(f"split.{sizes}", sizes)
        self.model.add("Split", (whole, split), [each.output for each in group], axis=-1)

    def _joined(self, group: Sequence[Op]) -> bool | None:
        """Whether siblings have one scheme and every part of one ends where the next one's begins; None if not."""
        weights = [op.weight for op in group if op.weight]
        schemes = {self.weights.schemes[weight.name] for weight in weights}
        scheme = next(iter(schemes))
        if len(schemes) > 1 or scheme is None or len({op.bias is None for op in group}) > 1:
            return None
        columns = [[f"{weight.name}.{part}" for weight in weights] for part in scheme.parts(1, 1)]
        columns.append([op.bias.name for op in group if op.bias])
        infos = [[self.weights.info(name) for name in column] for column in columns]
        fits = all(a.stop == b.start for column in infos for a, b in pairwise(column))
        return fits or None

    def _matrix(self, group: Sequence[Op], output: str) -> None:
        """One or more sibling linears as one multiplication with the value `output` [1, tokens, all rows]."""
        op = group[0]
        weight, scheme = self._scheme(op.weight)
        if scheme is None:
            self._float_matrix(op, weight)
            return
        rows = sum(each.weight.shape[0] for each in group if each.weight)
        groups, columns = scheme.groups(weight.shape[1]), weight.shape[1]
        part = _Parts(self, group, rows)
        precision = self.precision(op)
        x = self._two_parts(op.inputs[0], scheme, columns) if precision == "int16" else op.inputs[0]
        inputs = [x, part.codes((groups, scheme.group * scheme.bits // 8)), part.floats("scales", groups)]
        inputs += [part.zeros(groups)] if scheme.kind == "zp" else [""]
        inputs += ["", part.bias()]
        while not inputs[-1]:
            inputs.pop()
        symmetric = f"{output}/symmetric" if scheme.kind == "affine" or precision == "int16" else output
        self.model.add("MatMulNBits", inputs, symmetric, CONTRIB, K=columns, N=rows, bits=scheme.bits,
                       block_size=scheme.group, accuracy_level=0 if precision == "float" else 4)  # fmt: skip
        if precision == "int16":
            symmetric = self._sum_parts(symmetric, f"{output}/joined" if scheme.kind == "affine" else output)
        if scheme.kind == "affine":
            sums = self._group_sums(op.inputs[0], scheme, columns)
            shift = self._shift(part.name, part.floats("scales", groups), part.floats("offsets", groups), scheme)
            turned = self._once("Transpose", (shift,), f"{part.name}.shift.t", perm=[1, 0])
            correction = self.model.add("MatMul", (sums, turned), f"{output}/correction")
            self.model.add("Add", (symmetric, correction), output)

    def _two_parts(self, x: str, scheme: Scheme, columns: int) -> str:
        """x [1, tokens, columns] → [2, tokens, columns]: x as the int8 kernel rounds it, and what the rounding lost."""
        name, add, constant = f"{x}/two", self.model.add, self.model.constant
        if any(node.output == name for node in self.model.nodes):
            return name
        groups = scheme.groups(columns)
        padded = self._padded(x, scheme, columns, name)
        blocks = constant(f"groups.{groups}.{scheme.group}", [1, -1, groups, scheme.group])
        padded = add("Reshape", (padded, blocks), f"{name}/blocks")
        largest = add("ReduceMax", (add("Abs", (padded,), f"{name}/abs"), constant("axis.last", [-1])), f"{name}/max")
        step = add("Div", (largest, constant("int8.top", 127, np.float32)), f"{name}/scaled")
        step = add("Max", (step, constant("smallest", 1e-30, np.float32)), f"{name}/step")
        codes = add("Round", (add("Div", (padded, step), f"{name}/codes"),), f"{name}/rounded")
        high = add("Mul", (codes, step), f"{name}/high")
        low = add("Sub", (padded, high), f"{name}/low")
        both = add("Concat", (high, low), f"{name}/both", axis=0)
        flat = constant("flat.blocks", [0, 0, -1])
        if columns % scheme.group == 0:
            return add("Reshape", (both, flat), name)
        bounds = [constant(f"bound.{n}", [n]) for n in (0, columns, 2)]
        return add("Slice", (add("Reshape", (both, flat), f"{name}/flat"), *bounds), name)

    def _sum_parts(self, x: str, output: str) -> str:
        return self.model.add("ReduceSum", (x, self.model.constant("axis.first", [0])), output, keepdims=1)

    def _float_matrix(self, op: Op, weight: Weight) -> None:
        matrix = self._once("Transpose", (self._float(weight.name),), f"{weight.name}.t", perm=[1, 0])
        product = f"{op.output}/product" if op.bias else op.output
        self.model.add("MatMul", (op.inputs[0], matrix), product)
        if op.bias:
            self.model.add("Add", (product, self._float(op.bias.name)), op.output)

    def _group_sums(self, x: str, scheme: Scheme, columns: int) -> str:
        """Sums of the input over each group, [1, tokens, groups]; shared by the linears that read the same input."""
        name = f"{x}/sums.{scheme.group}"
        if any(node.output == name for node in self.model.nodes):
            return name
        groups = scheme.groups(columns)
        x = self._padded(x, scheme, columns, name)
        split = self.model.constant(f"groups.{groups}.{scheme.group}", [1, -1, groups, scheme.group])
        x = self.model.add("Reshape", (x, split), f"{name}/grouped")
        return self.model.add("ReduceSum", (x, self.model.constant("axis.last", [-1])), name, keepdims=0)

    def _padded(self, x: str, scheme: Scheme, columns: int, name: str) -> str:
        """x with its last axis padded to whole groups."""
        if columns % scheme.group == 0:
            return x
        lacking = scheme.groups(columns) * scheme.group - columns
        pads = self.model.constant(f"pads.{lacking}", [0, 0, 0, 0, 0, lacking])
        return self.model.add("Pad", (x, pads), f"{name}/padded")

    def _rope(self, op: Op) -> None:
        inputs = (op.inputs[0], "angle_rows", f"rope.{op.rope}.cos", f"rope.{op.rope}.sin")
        self.model.add("RotaryEmbedding", inputs, op.output, CONTRIB,
                       num_heads=op.heads, rotary_embedding_dim=0 if op.rotary == op.dim else op.rotary)  # fmt: skip

    def _attention(self, op: Op) -> None:
        past = [f"past.{op.layer}.key", f"past.{op.layer}.value"]
        ring = f"ring.{op.ring}"
        inputs = [*op.inputs, *past, f"{ring}.last", f"{ring}.total", "", "", "", f"{ring}.bias"]
        outputs = [op.output, f"present.{op.layer}.key", f"present.{op.layer}.value"]
        self.model.add("GroupQueryAttention", inputs, outputs, CONTRIB, num_heads=op.heads, kv_num_heads=op.kv_heads,
                       scale=op.scale, softcap=op.softcap or 0.0)  # fmt: skip

    def _gate(self, op: Op) -> None:
        gate, up = op.inputs
        if op.activation == "silu":
            x = self.model.add("QuickGelu", (gate,), f"{op.output}/silu", CONTRIB, alpha=1.0)
        else:
            x = self.model.add("Gelu", (gate,), f"{op.output}/gelu", approximate="tanh")
        self.model.add("Mul", (x, up), op.output)

    def _add(self, op: Op) -> None:
        self.model.add("Add", op.inputs, op.output)

    def _select(self, op: Op) -> None:
        self.model.add("Gather", (op.inputs[0], "rows"), op.output, axis=1)

    def _softcap(self, op: Op) -> None:
        cap = self.model.constant(f"cap.{op.softcap}", op.softcap, np.float32)
        x = self.model.add("Div", (op.inputs[0], cap), f"{op.output}/scaled")
        x = self.model.add("Tanh", (x,), f"{op.output}/tanh")
        self.model.add("Mul", (x, cap), op.output)


class _Parts:
    """Initializers over like parts of sibling weights, which lie side by side in the payload."""

    def __init__(self, emitter: _Emitter, group: Sequence[Op], rows: int) -> None:
        self._emitter = emitter
        self._group = group
        self._rows = rows
        self.name = "+".join(op.weight.name for op in group if op.weight)

    def _span(self, part: str, shape: tuple[int, ...]) -> str:
        first = self._group[0].weight
        assert first is not None
        info = self._emitter.weights.info(f"{first.name}.{part}")
        # The view has the shape in its name: a tied embedding has its codes seen in two ways.
        name = f"{self.name}.{part}.{'x'.join(map(str, shape))}"
        self._emitter.model.spans[name] = Span(info.dtype, (self._rows, *shape), info.start)
        return name

    def codes(self, shape: tuple[int, int]) -> str:
        return self._span("codes", shape)

    def zeros(self, groups: int) -> str:
        return self._span("zeros", (-(-groups // 2),))

    def floats(self, part: str, groups: int) -> str:
        span = self._span(part, (groups,))
        return self._emitter._once("Cast", (span,), f"{span}.f32", to=FLOAT)

    def bias(self) -> str:
        first = self._group[0].bias
        if first is None:
            return ""
        name = f"{self.name}.bias"
        self._emitter.model.spans[name] = Span("F32", (self._rows,), self._emitter.weights.info(first.name).start)
        return name
