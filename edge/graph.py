"""The Graph: a decoder as a flat list of frozen ops with named values, built from a DecoderSpec and checked.

Value names are paths (`/layers.3/attn/q`), weight names are canonical (`layers.3.attn.q`). What ops there are, and what
they compute, is in edge/ops; how a layer becomes ops, in edge/branches.py. Backends read the Graph and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edge.branches import BRANCHES, Builder
from edge.decoder import DecoderSpec
from edge.errors import FormatError
from edge.ops import OPS, Add, Embed, Experts, Linear, Op, Router, Select, Softcap, Weight

TOKENS = "/tokens"
LOGITS = "/logits"
SELECTED = "/select"  # the states of the rows whose logits are wanted: what the head reads
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

    def experts_chosen(self, op: Op[Experts]) -> int:
        """How many experts of a mixture each token is multiplied with. Raises FormatError unless a router chooses."""
        for maker in self.ops:
            if maker.output == op.inputs[1] and isinstance(maker.attrs, Router):
                return maker.attrs.top_k
        raise FormatError(f"graph: {op.kind} {op.output}: its second input {op.inputs[1]} is no router's output")

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


def build(spec: DecoderSpec) -> Graph:
    """The graph of a decoder. The result has been through `verify`."""
    builder = Builder(spec)
    shape = (spec.vocab_size, spec.hidden_size)
    embedding = Weight("embed", shape, "embed")
    x = builder.add("/embed", (TOKENS,), Embed(embedding, spec.embedding_scale))
    for index in range(len(spec.layers)):
        x = _layer(builder, x, index)
    x = builder.norm(x, HIDDEN, "norm")
    x = builder.add(SELECTED, (x,), Select())
    head = embedding if spec.tied_head else Weight("head", shape, "head")
    x = builder.add("/head" if spec.logit_softcap else LOGITS, (x,), Linear(head))
    if spec.logit_softcap:
        builder.add(LOGITS, (x,), Softcap(spec.logit_softcap))
    graph = Graph(spec, tuple(builder.ops), builder.widths)
    verify(graph)
    return graph


def _layer(builder: Builder, x: str, index: int) -> str:
    spec, layer = builder.spec, builder.spec.layers[index]
    for label, branch in (("attn", layer.attention), ("mlp", layer.mlp)):
        path, name = f"/layers.{index}/{label}", f"layers.{index}.{label}"
        inner = builder.norm(x, f"{path}_norm", f"{name}_norm") if spec.pre_norms else x
        inner = BRANCHES[type(branch)](builder, inner, index, branch)
        if spec.post_norms:
            inner = builder.norm(inner, f"{path}_post_norm", f"{name}_post_norm")
        x = builder.add(f"{path}/residual", (x, inner), Add())
    return x


def verify(graph: Graph) -> None:
    """Raise FormatError unless every value is defined once before its uses, used, and every width fits its op."""
    widths = {TOKENS: 0}
    used: set[str] = set()
    weights: dict[str, Weight] = {}
    layers: set[int] = set()
    for op in graph.ops:
        where = f"graph: {op.kind} {op.output}"
        kind = OPS.get(type(op.attrs))
        if kind is None:
            raise FormatError(f"{where}: unknown op kind; known: {', '.join(known.kind for known in OPS)}")
        if len(op.inputs) != kind.arity:
            raise FormatError(f"{where}: {len(op.inputs)} inputs where it takes {kind.arity}")
        missing = [name for name in op.inputs if name not in widths]
        if missing or op.output in widths:
            raise FormatError(f"{where}: {'undefined input ' + missing[0] if missing else 'defined twice'}")
        used.update(op.inputs)
        for weight in op.weights:
            if weights.setdefault(weight.name, weight) != weight:
                raise FormatError(f"{where}: weight {weight.name} is {weight} and {weights[weight.name]}")
        width = kind.width(op.attrs, [widths[name] for name in op.inputs], graph.spec)
        if width != graph.widths.get(op.output):
            raise FormatError(f"{where}: width {width} where {graph.widths.get(op.output)} is declared")
        if width < 0:
            raise FormatError(f"{where}: attributes that fit neither its inputs nor the spec: {op.attrs}")
        widths[op.output] = width
        if kind.attends:
            layer = kind.attends(op.attrs)
            if layer in layers:
                raise FormatError(f"{where}: a second op keeps the tokens of layer {layer}")
            layers.add(layer)
    unused = widths.keys() - used - {LOGITS}
    if unused or widths.get(LOGITS) != graph.spec.vocab_size:
        raise FormatError(f"graph: {min(unused) + ' is never used' if unused else 'no logits of the vocabulary'}")
