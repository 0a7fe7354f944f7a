"""The program for the Neural Engine: values [1, channels, 1, rows], float16 throughout, products as 1 × 1 convolutions.

Matrices are int8 with a scale for each row, made of the payload's numbers. A norm divides by the largest magnitude
first, so that nothing is squared that float16 could not square; eps is divided by the same, twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from edge import coreml_ane_interface
from edge import graph as graphs
from edge.coreml_ane_interface import HIDDEN
from edge.coreml_interface import Function
from edge.ops import Add, Attention, Embed, Gate, Linear, Norm, Op, Rope, Select, Softcap, Weight
from exporters.emit.coreml.blobs import Blob
from exporters.emit.coreml.linears import Linears, numbers, softcap
from exporters.emit.coreml.matrices import Coded
from exporters.emit.coreml.program import Program
from exporters.emit.coreml.scope import Scope

_BLOCK = 1 << 22  # numbers quantized at a time
_SMALLEST = 2.0**-14  # the least that a row is divided by
_PLAIN: dict[str, Any] = {"strides": [1, 1], "pad_type": "valid", "pad": [0] * 4, "dilations": [1, 1], "groups": 1}


class AneProgram(Program):
    """Functions for the Neural Engine."""

    sides = staticmethod(coreml_ane_interface.sides)

    def translate(self, function: Function, scope: Scope) -> Any:
        return _Builder(self, function, scope).build()


class _Builder:
    def __init__(self, program: AneProgram, function: Function, scope: Scope) -> None:
        self.bundle, self.spec = program.bundle, program.bundle.spec
        self.function, self.scope = function, scope
        self.linears = Linears(scope, program.matrices)
        self.kept: dict[str, list[Any]] = {}
        self.head: list[Any] = []

    def build(self) -> Any:
        for op in self.bundle.graph.ops:
            HANDLERS[type(op.attrs)](self, op)
        found: dict[str, tuple[str, dict[str, Any]]] = {
            f"logits_{index}": ("identity", {"x": part}) for index, part in enumerate(self.head)
        }
        for name, rows in self.kept.items():
            found[name] = ("stack", {"values": rows, "axis": 0})
        outputs = coreml_ane_interface.sides(self.spec, self.function)[1]
        return self.scope.finish({name: found[name] for name in outputs})

    def vector(self, name: str, offset: float, shape: tuple[int, ...]) -> Any:
        values = (self.bundle.weights.read(name) + np.float32(offset)).astype(np.float16)
        return self.scope.constant(f"weight/{name}", numbers(values.reshape(shape)))

    def product(self, x: Any, weight: Weight, bias: Weight | None, path: str, bounds: tuple[int, int]) -> Any:
        """x [1, columns, 1, rows] times rows start…stop of a matrix, plus its bias."""
        key = f"weight/{weight.name}/rows.{bounds[0]}.{bounds[1]}"
        coded = _by_channel(self.bundle.weights.read, weight, bounds)
        constants = {part: self.scope.constant(f"{key}/{part}", getattr(coded, part)) for part in ("data", "scale")}
        matrix = self.scope.shared(key, lambda: self.scope.op("constexpr_blockwise_shift_scale", key, **constants))
        if bias is None:
            size = bounds[1] - bounds[0]
            added = self.scope.constant(f"zeros.{size}", numbers(np.zeros(size, np.float16)))
        else:
            added = self.vector(bias.name, 0.0, (bias.size,))
        return self.scope.op("conv", path, x=x, weight=matrix, bias=added, **_PLAIN)


def _by_channel(read: Callable[..., Any], weight: Weight, bounds: tuple[int, int]) -> Coded:
    """Rows of a matrix as int8 with a scale each, [rows, columns, 1, 1]."""
    columns, count = weight.shape[1], bounds[1] - bounds[0]

    def blocks() -> Iterator[tuple[Any, Any]]:
        step = max(1, _BLOCK // columns)
        for start in range(bounds[0], bounds[1], step):
            rows = read(weight.name, start, min(start + step, bounds[1]))
            scales = (np.abs(rows).max(axis=1) / 127).astype(np.float16)
            scales = np.where(scales == 0, np.float16(1), scales)
            yield np.clip(np.rint(rows / scales[:, None].astype(np.float32)), -127, 127).astype(np.int8), scales

    return Coded(
        Blob("int8", (count, columns, 1, 1), lambda: (codes.tobytes() for codes, _ in blocks())),
        Blob("float16", (count, 1, 1, 1), lambda: (scales.tobytes() for _, scales in blocks())),
        None,
    )


def _embed(build: _Builder, op: Op[Embed]) -> None:
    x = build.scope.inputs["x"]
    if op.attrs.scale != 1.0:
        x = build.scope.op("mul", op.output, x=x, y=np.float16(op.attrs.scale))
    build.scope.set(op.output, x)


def _norm(build: _Builder, op: Op[Norm]) -> None:
    """RMS norm over the channels, or over each head's."""
    attrs, scope, path = op.attrs, build.scope, op.output
    x = scope.take(op.inputs[0], "float16")
    flat = x.shape
    x = scope.reshape(x, f"{path}/vectors", (attrs.vectors, attrs.dim, flat[-1]))
    largest = scope.op("reduce_max", f"{path}/max", x=scope.op("abs", f"{path}/abs", x=x), axes=[1], keep_dims=True)
    largest = scope.op("maximum", f"{path}/largest", x=largest, y=np.float16(_SMALLEST))
    x = scope.op("real_div", f"{path}/scaled", x=x, y=largest)
    mean = scope.op(
        "reduce_mean", f"{path}/mean", x=scope.op("mul", f"{path}/squares", x=x, y=x), axes=[1], keep_dims=True
    )
    root = scope.op("real_div", f"{path}/eps_root", x=np.float16(math.sqrt(attrs.eps)), y=largest)
    mean = scope.op("add", f"{path}/mean_eps", x=mean, y=scope.op("mul", f"{path}/eps", x=root, y=root))
    factor = scope.op("rsqrt", f"{path}/factor", x=mean, epsilon=np.float16(0))
    normed = scope.op("mul", f"{path}/normed", x=x, y=factor)
    weight = build.vector(attrs.weight.name, attrs.offset, (1, attrs.dim, 1))
    scope.set(path, scope.reshape(scope.op("mul", f"{path}/weighted", x=normed, y=weight), path, flat))


def _linear(build: _Builder, op: Op[Linear]) -> None:
    x, rows = build.scope.take(op.inputs[0], "float16"), op.attrs.weight.shape[0]
    if rows != build.spec.vocab_size or op.inputs[0] != graphs.SELECTED:
        build.scope.set(op.output, build.product(x, op.attrs.weight, op.attrs.bias, op.output, (0, rows)))
        return
    parts = coreml_ane_interface.parts(build.spec)
    build.head = [build.product(x, op.attrs.weight, None, f"{op.output}/{bounds[0]}", bounds) for bounds in parts]


def _rope(build: _Builder, op: Op[Rope]) -> None:
    attrs, scope, path = op.attrs, build.scope, op.output
    x = scope.take(op.inputs[0], "float16")
    flat, half = x.shape, attrs.rotary // 2
    x = scope.reshape(x, f"{path}/heads", (attrs.heads, attrs.dim, flat[-1]))
    a, b = (scope.slice(x, f"{path}/{part}", 1, (i * half, (i + 1) * half)) for i, part in enumerate("ab"))
    cos, sin = (scope.inputs[f"{part}_{attrs.rope}"] for part in ("cos", "sin"))

    def rotated(first: Any, second: Any, kind: str, part: str) -> Any:
        left = scope.op("mul", f"{path}/{part}_cos", x=first, y=cos)
        return scope.op(kind, f"{path}/{part}_turned", x=left, y=scope.op("mul", f"{path}/{part}_sin", x=second, y=sin))

    parts = [rotated(a, b, "sub", "a"), rotated(b, a, "add", "b")]
    if attrs.rotary < attrs.dim:
        parts.append(scope.slice(x, f"{path}/rest", 1, (attrs.rotary, attrs.dim)))
    scope.set(path, scope.reshape(scope.op("concat", f"{path}/whole", values=parts, axis=1), path, flat))


def _attention(build: _Builder, op: Op[Attention]) -> None:
    """Scores are [kv_heads, slots, group · rows]: keys stand in the channels' place."""
    attrs, scope, path, rows = op.attrs, build.scope, op.output, build.function.rows
    group, kv = attrs.heads // attrs.kv_heads, attrs.kv_heads
    q = scope.op("mul", f"{path}/q", x=scope.take(op.inputs[0], "float16"), y=np.float16(attrs.scale))
    q = scope.reshape(q, f"{path}/q_heads", (kv, group, attrs.dim, rows))
    q = scope.reshape(
        scope.transpose(q, f"{path}/q_dims", (0, 2, 1, 3)), f"{path}/q_rows", (kv, attrs.dim, group * rows)
    )
    values = []
    for part, name in zip("kv", op.inputs[1:], strict=True):
        new = scope.reshape(scope.take(name, "float16"), f"{path}/{part}_heads", (kv, attrs.dim, rows))
        new = scope.transpose(new, f"{path}/{part}_new", (0, 2, 1))
        kept = build.kept.setdefault(f"new_{part}_{attrs.group}", [])
        past = scope.pick(scope.inputs[f"past_{part}_{attrs.group}"], f"{path}/{part}_past", len(kept))
        kept.append(new)
        values.append(scope.op("concat", f"{path}/{part}", values=[past, new], axis=1))
    scores = scope.op("matmul", f"{path}/scores", x=values[0], y=q)
    slots = scores.shape[1]
    scores = scope.reshape(scores, f"{path}/by_row", (kv, slots, group, rows))
    if attrs.softcap is not None:
        scores = softcap(scope, scores, attrs.softcap, f"{path}/capped")
    scores = scope.op("add", f"{path}/seen", x=scores, y=_mask(build, attrs, slots - rows))
    weights = scope.op("softmax", f"{path}/weights", x=scores, axis=1)
    weights = scope.reshape(weights, f"{path}/weights_rows", (kv, slots, group * rows))
    mixed = scope.op("matmul", f"{path}/mixed", x=values[1], y=weights, transpose_x=True)
    mixed = scope.reshape(mixed, f"{path}/mixed_groups", (kv, attrs.dim, group, rows))
    mixed = scope.transpose(mixed, f"{path}/mixed_heads", (0, 2, 1, 3))
    scope.set(path, scope.reshape(mixed, path, (1, attrs.heads * attrs.dim, 1, rows)))


def _mask(build: _Builder, attrs: Attention, slots: int) -> Any:
    """What hides slots and later new rows, [1, slots + rows, 1, rows]; shared by the layers of a group."""
    scope, rows = build.scope, build.function.rows

    def make() -> Any:
        past = scope.reshape(scope.inputs[f"mask_{attrs.group}"], f"mask_{attrs.group}/past", (1, slots, 1, rows))
        distance = np.arange(rows) - np.arange(rows)[:, None]  # [key, query]
        seen = (distance >= 0) & (distance < (attrs.window or rows))
        values = np.where(seen, 0.0, HIDDEN).astype(np.float16).reshape(1, rows, 1, rows)
        new = scope.constant(f"new_mask.{rows}.{attrs.window or 0}", numbers(values))
        return scope.op("concat", f"mask_{attrs.group}/all", values=[past, new], axis=1)

    return scope.shared(f"mask {attrs.group}", make)


def _gate(build: _Builder, op: Op[Gate]) -> None:
    gate, up = (build.scope.take(name, "float16") for name in op.inputs)
    active = build.linears.activate(op.attrs.activation, gate, f"{op.output}/active")
    build.scope.set(op.output, build.scope.op("mul", op.output, x=active, y=up))


def _add(build: _Builder, op: Op[Add]) -> None:
    x, y = (build.scope.take(name, "float16") for name in op.inputs)
    build.scope.set(op.output, build.scope.op("add", op.output, x=x, y=y))


def _select(build: _Builder, op: Op[Select]) -> None:
    """The one row that is wanted, as a sum over all of which the others count 0."""
    x = build.scope.take(op.inputs[0], "float16")
    if build.function.kind == "prefill":
        x = build.scope.op("mul", f"{op.output}/picked", x=x, y=build.scope.inputs["pick"])
        x = build.scope.op("reduce_sum", op.output, x=x, axes=[-1], keep_dims=True)
    build.scope.set(op.output, x)


def _softcap(build: _Builder, op: Op[Softcap]) -> None:
    assert op.output == graphs.LOGITS
    build.head = [softcap(build.scope, part, op.attrs.cap, f"{op.output}/{n}") for n, part in enumerate(build.head)]


HANDLERS: dict[type[Any], Callable[[_Builder, Op[Any]], None]] = {
    Embed: _embed,
    Norm: _norm,
    Linear: _linear,
    Rope: _rope,
    Attention: _attention,
    Gate: _gate,
    Add: _add,
    Select: _select,
    Softcap: _softcap,
}
