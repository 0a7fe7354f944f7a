"""The Graph: a decoder as a flat list of frozen ops with named values, built from a DecoderSpec and checked.

Value names are paths (`/layers.3/attn/q`), weight names are canonical (`layers.3.attn.q`). What ops there are, and what
they compute, is in edge/ops.py; a backend reads the Graph and nothing beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from edge.decoder import DecoderSpec
from edge.errors import BundleError
from edge.layers import Dense, Gqa
from edge.ops import (
    OPS,
    Add,
    Attention,
    Attrs,
    Embed,
    Gate,
    Linear,
    Norm,
    Op,
    Role,
    Rope,
    Select,
    Softcap,
    Weight,
)

TOKENS = "/tokens"
LOGITS = "/logits"
HIDDEN = "/norm"


@dataclass(frozen=True, slots=True)
class Graph:
    """Ops in order of execution. `widths` gives the row width of every value."""

    spec: DecoderSpec
    ops: tuple[Op[Any], ...]
    widths: dict[str, int]

    @property
    def weights(self) -> tuple[Weight, ...]:
        """Every weight once, in order of first use; biases after their matrix. A tied head adds none."""
        seen: dict[str, Weight] = {}
        for op in self.ops:
            for weight in op.weights:
                seen.setdefault(weight.name, weight)
        return tuple(seen.values())

    @property
    def parameters(self) -> int:
        """Numbers in all weights, a tied head counted once."""
        return sum(weight.size for weight in self.weights)

    @property
    def siblings(self) -> tuple[tuple[Op[Linear], ...], ...]:
        """Linears in order, neighbours that read the same value together: q, k and v; gate and up.

        Their payload is written side by side, so that a backend can run them as one matrix.
        """
        groups: list[list[Op[Linear]]] = []
        for op in self.ops:
            if isinstance(op.attrs, Linear):
                if groups and groups[-1][0].inputs == op.inputs:
                    groups[-1].append(op)
                else:
                    groups.append([op])
        return tuple(tuple(group) for group in groups)


class _Builder:
    """Collects ops for one spec; each method adds one and returns the name of its output."""

    def __init__(self, spec: DecoderSpec) -> None:
        self.spec = spec
        self.ops: list[Op[Any]] = []
        self.widths: dict[str, int] = {}

    def add(self, output: str, inputs: tuple[str, ...], attrs: Attrs) -> str:
        op = Op(output, inputs, attrs)
        self.ops.append(op)
        self.widths[output] = OPS[type(attrs)].width(attrs, [self.widths.get(name, 0) for name in inputs], self.spec)
        return output

    def norm(self, x: str, output: str, name: str, dim: int | None = None) -> str:
        """RMS norm of x, over pieces of `dim` (the whole row by default) with one weight of that size."""
        width = self.widths[x]
        dim = dim or width
        attrs = Norm(Weight(name, (dim,), "norm"), width // dim, dim, self.spec.norm_eps, self.spec.norm_offset)
        return self.add(output, (x,), attrs)

    def linear(self, x: str, output: str, weight: Weight, *, bias: bool = False) -> str:
        """x times the transpose of a weight, of which the rows alone are known yet: its columns are the width of x."""
        weight = replace(weight, shape=(*weight.shape, self.widths[x]))
        vector = replace(weight, name=f"{weight.name}.bias", shape=weight.shape[:1]) if bias else None
        return self.add(output, (x,), Linear(weight, vector))


def build(spec: DecoderSpec) -> Graph:
    """The graph of a decoder. The result has been through `verify`."""
    builder = _Builder(spec)
    shape = (spec.vocab_size, spec.hidden_size)
    embedding = Weight("embed", shape, "embed")
    x = builder.add("/embed", (TOKENS,), Embed(embedding, spec.embedding_scale))
    for index in range(len(spec.layers)):
        x = _layer(builder, x, index)
    x = builder.norm(x, HIDDEN, "norm")
    x = builder.add("/select", (x,), Select())
    head = embedding if spec.tied_head else Weight("head", shape, "head")
    x = builder.add("/head" if spec.logit_softcap else LOGITS, (x,), Linear(head))
    if spec.logit_softcap:
        builder.add(LOGITS, (x,), Softcap(spec.logit_softcap))
    graph = Graph(spec, tuple(builder.ops), builder.widths)
    verify(graph)
    return graph


def _layer(builder: _Builder, x: str, index: int) -> str:
    spec, layer = builder.spec, builder.spec.layers[index]
    for part, branch in (("attn", layer.attention), ("mlp", layer.mlp)):
        path, name = f"/layers.{index}/{part}", f"layers.{index}.{part}"
        inner = builder.norm(x, f"{path}_norm", f"{name}_norm") if spec.pre_norms else x
        inner = _BRANCHES[type(branch)](builder, inner, index, branch)
        if spec.post_norms:
            inner = builder.norm(inner, f"{path}_post_norm", f"{name}_post_norm")
        x = builder.add(f"{path}/residual", (x, inner), Add())
    return x


def _gqa(builder: _Builder, x: str, index: int, spec: Gqa) -> str:
    path, name, dim = f"/layers.{index}/attn", f"layers.{index}.attn", spec.head_dim
    parts: tuple[tuple[str, Role, int], ...] = (
        ("q", "query", spec.heads), ("k", "key", spec.kv_heads), ("v", "value", spec.kv_heads),
    )  # fmt: skip
    values = {}
    for part, role, heads in parts:
        weight = Weight(f"{name}.{part}", (heads * dim,), role, dim)
        values[part] = builder.linear(x, f"{path}/{part}", weight, bias=spec.qkv_bias)
    for part, _, heads in parts[:2]:
        if spec.qk_norm != "none":
            over = dim if spec.qk_norm == "head" else None
            values[part] = builder.norm(values[part], f"{path}/{part}_norm", f"{name}.{part}_norm", over)
        if spec.rope is not None:
            rope = Rope(heads, dim, spec.rope, builder.spec.ropes[spec.rope].dim)
            values[part] = builder.add(f"{path}/{part}_rope", (values[part],), rope)
    group = builder.spec.layer_groups[index]
    attention = Attention(spec.heads, spec.kv_heads, dim, index, group, spec.scale, spec.window, spec.softcap)
    mixed = builder.add(f"{path}/mix", (values["q"], values["k"], values["v"]), attention)
    output = Weight(f"{name}.o", (builder.spec.hidden_size,), "output", dim)
    return builder.linear(mixed, f"{path}/o", output, bias=spec.output_bias)


def _dense(builder: _Builder, x: str, index: int, spec: Dense) -> str:
    path, name = f"/layers.{index}/mlp", f"layers.{index}.mlp"
    gate = builder.linear(x, f"{path}/gate", Weight(f"{name}.gate", (spec.size,), "gate"), bias=spec.bias)
    up = builder.linear(x, f"{path}/up", Weight(f"{name}.up", (spec.size,), "up"), bias=spec.bias)
    inner = builder.add(f"{path}/act", (gate, up), Gate(spec.activation))
    down = Weight(f"{name}.down", (builder.spec.hidden_size,), "down")
    return builder.linear(inner, f"{path}/down", down, bias=spec.bias)


# The ops of each variant of a layer's parts: (builder, normed input, layer, its spec) → the branch's output.
_BRANCHES: dict[type[Any], Callable[[_Builder, str, int, Any], str]] = {Gqa: _gqa, Dense: _dense}


def verify(graph: Graph) -> None:
    """Raise BundleError unless every value is defined once before its uses, used, and every width fits its op."""
    widths = {TOKENS: 0}
    used: set[str] = set()
    weights: dict[str, Weight] = {}
    layers: set[int] = set()
    for op in graph.ops:
        where = f"graph: {op.kind} {op.output}"
        kind = OPS.get(type(op.attrs))
        if kind is None:
            raise BundleError(f"{where}: unknown op kind; known: {', '.join(known.name for known in OPS.values())}")
        if len(op.inputs) != kind.arity:
            raise BundleError(f"{where}: {len(op.inputs)} inputs where it takes {kind.arity}")
        missing = [name for name in op.inputs if name not in widths]
        if missing or op.output in widths:
            raise BundleError(f"{where}: {'undefined input ' + missing[0] if missing else 'defined twice'}")
        used.update(op.inputs)
        for weight in op.weights:
            if weights.setdefault(weight.name, weight) != weight:
                raise BundleError(f"{where}: weight {weight.name} is {weight} and {weights[weight.name]}")
        width = kind.width(op.attrs, [widths[name] for name in op.inputs], graph.spec)
        if width != graph.widths.get(op.output):
            raise BundleError(f"{where}: width {width} where {graph.widths.get(op.output)} is declared")
        if width < 0:
            raise BundleError(f"{where}: attributes that fit neither its inputs nor the spec: {op.attrs}")
        widths[op.output] = width
        if kind.attends:
            layer = kind.attends(op.attrs)
            if layer in layers:
                raise BundleError(f"{where}: a second op keeps the tokens of layer {layer}")
            layers.add(layer)
    unused = widths.keys() - used - {LOGITS}
    if unused or widths.get(LOGITS) != graph.spec.vocab_size:
        raise BundleError(f"graph: {min(unused) + ' is never used' if unused else 'no logits of the vocabulary'}")
