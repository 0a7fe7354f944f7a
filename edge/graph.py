"""The Graph: a decoder as a flat list of frozen ops with named values, built from a DecoderSpec and checked.

Value names are paths (`/layers.3/attn/q`), weight names are canonical (`layers.3.attn.q`). All activations are
[tokens, width]: `tokens` rows, one a new token. The op kinds:

    embed      (tokens) → [tokens, hidden]                weight [vocab, hidden]; times `scale`
    norm       x → same                                   RMS norm over the last `dim` numbers of each head-sized piece
    linear     x → [tokens, rows]                         x · weightᵀ (+ bias)
    rope       x → same                                   rotates the first `dim` numbers of each head by the positions
    attention  q, k, v → [tokens, heads * head_dim]       over ring `ring` and the new rows; writes k and v there
    gate       gate, up → same                            activation(gate) * up
    add        a, b → same
    select     x → [wanted, width]                        the rows whose logits are wanted
    softcap    x → same                                   cap * tanh(x / cap)

A router with experts and a latent KV would be further kinds; a backend refuses a kind that it does not know.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from edge.decoder import Activation, DecoderSpec, LayerSpec
from edge.errors import BundleError

Kind = Literal["embed", "norm", "linear", "rope", "attention", "gate", "add", "select", "softcap"]
TOKENS = "/tokens"
LOGITS = "/logits"
HIDDEN = "/norm"
_ARITY = {"attention": 3, "gate": 2, "add": 2}  # the other kinds take one input


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight by canonical name; a matrix is [rows, columns], a vector [size]."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Op:
    """One step. Attributes that a kind does not use keep their defaults.

    `heads` and `dim`: for norm, the pieces that a row is cut into and their width; for rope and attention, the query
    heads (rope: heads of this input) and head_dim; `rotary` is how many of them rope turns.
    """

    kind: Kind
    output: str
    inputs: tuple[str, ...]
    weight: Weight | None = None
    bias: Weight | None = None
    heads: int = 1
    kv_heads: int = 1
    dim: int = 0
    rotary: int = 0
    rope: int = 0
    layer: int = 0
    ring: int = 0
    scale: float = 1.0
    eps: float = 0.0
    offset: float = 0.0
    softcap: float | None = None
    activation: Activation = "silu"


@dataclass(frozen=True, slots=True)
class Graph:
    """Ops in order of execution. `widths` gives the row width of every value."""

    spec: DecoderSpec
    ops: tuple[Op, ...]
    widths: dict[str, int]

    @property
    def weights(self) -> tuple[Weight, ...]:
        """Every weight once, in order of first use; biases after their matrix. A tied head adds none."""
        seen: dict[str, Weight] = {}
        for op in self.ops:
            for weight in (op.weight, op.bias):
                if weight is not None:
                    seen.setdefault(weight.name, weight)
        return tuple(seen.values())

    @property
    def parameters(self) -> int:
        """Numbers in all weights, a tied head counted once."""
        return sum(math.prod(weight.shape) for weight in self.weights)

    @property
    def siblings(self) -> tuple[tuple[Op, ...], ...]:
        """Linears in order, neighbours that read the same value together: q, k and v; gate and up.

        Their payload is written side by side, so that a backend can run them as one matrix.
        """
        groups: list[list[Op]] = []
        for op in self.ops:
            if op.kind == "linear":
                if groups and groups[-1][0].inputs == op.inputs:
                    groups[-1].append(op)
                else:
                    groups.append([op])
        return tuple(tuple(group) for group in groups)


class _Builder:
    """Collects ops for one spec; each method adds one and returns the name of its output."""

    def __init__(self, spec: DecoderSpec) -> None:
        self.spec = spec
        self.ops: list[Op] = []
        self.widths: dict[str, int] = {}

    def add(self, op: Op, width: int) -> str:
        self.ops.append(op)
        self.widths[op.output] = width
        return op.output

    def norm(self, x: str, output: str, name: str, dim: int | None = None) -> str:
        """RMS norm of x, over pieces of `dim` (the whole row by default) with one weight of that size."""
        width = self.widths[x]
        dim = dim or width
        weight = Weight(name, (dim,))
        spec = self.spec
        op = Op("norm", output, (x,), weight, heads=width // dim, dim=dim, eps=spec.norm_eps, offset=spec.norm_offset)
        return self.add(op, width)

    def linear(self, x: str, output: str, name: str, rows: int, *, bias: bool = False) -> str:
        weight = Weight(name, (rows, self.widths[x]))
        return self.add(Op("linear", output, (x,), weight, Weight(f"{name}.bias", (rows,)) if bias else None), rows)

    def residual(self, x: str, branch: str, output: str) -> str:
        return self.add(Op("add", output, (x, branch)), self.widths[x])


def build(spec: DecoderSpec) -> Graph:
    """The graph of a decoder. The result has been through `verify`."""
    builder = _Builder(spec)
    embedding = Weight("embed", (spec.vocab_size, spec.hidden_size))
    x = builder.add(Op("embed", "/embed", (TOKENS,), embedding, scale=spec.embedding_scale), spec.hidden_size)
    for index, layer in enumerate(spec.layers):
        x = _layer(builder, x, index, layer)
    x = builder.norm(x, HIDDEN, "norm")
    x = builder.add(Op("select", "/select", (x,)), spec.hidden_size)
    head = embedding if spec.tied_head else Weight("head", embedding.shape)
    last = "/head" if spec.logit_softcap else LOGITS
    x = builder.add(Op("linear", last, (x,), head), spec.vocab_size)
    if spec.logit_softcap:
        builder.add(Op("softcap", LOGITS, (x,), softcap=spec.logit_softcap), spec.vocab_size)
    graph = Graph(spec, tuple(builder.ops), builder.widths)
    verify(graph)
    return graph


def _layer(builder: _Builder, x: str, index: int, layer: LayerSpec) -> str:
    spec = builder.spec
    for part, make in (("attn", _attention), ("mlp", _mlp)):
        path, name = f"/layers.{index}/{part}", f"layers.{index}.{part}"
        inner = builder.norm(x, f"{path}_norm", f"{name}_norm") if spec.pre_norms else x
        inner = make(builder, inner, index, layer)
        if spec.post_norms:
            inner = builder.norm(inner, f"{path}_post_norm", f"{name}_post_norm")
        x = builder.residual(x, inner, f"{path}/residual")
    return x


def _attention(builder: _Builder, x: str, index: int, layer: LayerSpec) -> str:
    spec = builder.spec
    path, name = f"/layers.{index}/attn", f"layers.{index}.attn"
    rotated = {}
    for part, heads in (("q", spec.heads), ("k", spec.kv_heads), ("v", spec.kv_heads)):
        rotated[part] = builder.linear(x, f"{path}/{part}", f"{name}.{part}", heads * spec.head_dim, bias=spec.qkv_bias)
    for part, heads in (("q", spec.heads), ("k", spec.kv_heads)):
        value = rotated[part]
        if spec.qk_norm != "none":
            dim = spec.head_dim if spec.qk_norm == "head" else None
            value = builder.norm(value, f"{path}/{part}_norm", f"{name}.{part}_norm", dim)
        if layer.rope is not None:
            op = Op("rope", f"{path}/{part}_rope", (value,), heads=heads, dim=spec.head_dim, rope=layer.rope,
                    rotary=spec.ropes[layer.rope].dim)  # fmt: skip
            value = builder.add(op, heads * spec.head_dim)
        rotated[part] = value
    op = Op(
        "attention",
        f"{path}/mix",
        (rotated["q"], rotated["k"], rotated["v"]),
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        dim=spec.head_dim,
        layer=index,
        ring=spec.windows.index(layer.window),
        scale=spec.attention_scale,
        softcap=spec.attention_softcap,
    )
    mixed = builder.add(op, spec.heads * spec.head_dim)
    return builder.linear(mixed, f"{path}/o", f"{name}.o", spec.hidden_size, bias=spec.output_bias)


def _mlp(builder: _Builder, x: str, index: int, layer: LayerSpec) -> str:
    del layer
    spec = builder.spec
    path, name = f"/layers.{index}/mlp", f"layers.{index}.mlp"
    gate = builder.linear(x, f"{path}/gate", f"{name}.gate", spec.intermediate_size, bias=spec.mlp_bias)
    up = builder.linear(x, f"{path}/up", f"{name}.up", spec.intermediate_size, bias=spec.mlp_bias)
    op = Op("gate", f"{path}/act", (gate, up), activation=spec.activation)
    inner = builder.add(op, spec.intermediate_size)
    return builder.linear(inner, f"{path}/down", f"{name}.down", spec.hidden_size, bias=spec.mlp_bias)


def verify(graph: Graph) -> None:
    """Raise BundleError unless every value is defined once before its uses, used, and every width fits its op."""
    widths = {TOKENS: 0}
    used: set[str] = set()
    shapes: dict[str, tuple[int, ...]] = {}
    layers: set[int] = set()
    for op in graph.ops:
        where = f"graph: {op.kind} {op.output}"
        if op.kind not in get_args(Kind):
            raise BundleError(f"{where}: unknown op kind; known: {', '.join(get_args(Kind))}")
        missing = [name for name in op.inputs if name not in widths]
        if len(op.inputs) != _ARITY.get(op.kind, 1):
            raise BundleError(f"{where}: {len(op.inputs)} inputs where it takes {_ARITY.get(op.kind, 1)}")
        if missing or op.output in widths:
            raise BundleError(f"{where}: {'undefined input ' + missing[0] if missing else 'defined twice'}")
        used.update(op.inputs)
        for weight in (op.weight, op.bias):
            if weight and shapes.setdefault(weight.name, weight.shape) != weight.shape:
                raise BundleError(f"{where}: weight {weight.name} is {weight.shape} and {shapes[weight.name]}")
        width = _width(op, [widths[name] for name in op.inputs], graph.spec)
        if width != graph.widths.get(op.output):
            raise BundleError(f"{where}: width {width} where {graph.widths.get(op.output)} is declared")
        widths[op.output] = width
        if op.kind == "attention" and not _attends(op, layers, graph.spec):
            raise BundleError(f"{where}: layer {op.layer} with ring {op.ring} is not the spec's, or is there twice")
    unused = widths.keys() - used - {LOGITS}
    if unused or widths.get(LOGITS) != graph.spec.vocab_size:
        raise BundleError(f"graph: {min(unused) + ' is never used' if unused else 'no logits of the vocabulary'}")


def _attends(op: Op, seen: set[int], spec: DecoderSpec) -> bool:
    """Whether an attention writes the keys and values of a layer that no other does, in the ring of its window."""
    fits = 0 <= op.layer < len(spec.layers) and op.layer not in seen
    seen.add(op.layer)
    return fits and op.ring == spec.windows.index(spec.layers[op.layer].window)


def _width(op: Op, inputs: list[int], spec: DecoderSpec) -> int:
    """The output width that the op's operands imply; -1 where they contradict each other."""
    x = inputs[0]
    shape = op.weight.shape if op.weight else ()
    if op.kind == "embed":
        return shape[1] if len(shape) == 2 and shape[0] == spec.vocab_size else -1
    if op.kind == "norm":
        return x if shape == (op.dim,) and op.heads * op.dim == x else -1
    if op.kind == "linear":
        fits = len(shape) == 2 and shape[1] == x and (op.bias is None or op.bias.shape == shape[:1])
        return shape[0] if fits else -1
    if op.kind == "rope":
        return x if op.heads * op.dim == x and 0 < op.rotary <= op.dim and 0 <= op.rope < len(spec.ropes) else -1
    if op.kind == "attention":
        kv = op.kv_heads * op.dim
        return x if inputs == [op.heads * op.dim, kv, kv] and op.heads % op.kv_heads == 0 else -1
    return x if len(set(inputs)) == 1 else -1
