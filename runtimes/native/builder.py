"""From a Graph to the native engine's program: passes over the Graph, a straight translation, passes over the steps.

The translation makes one or two instructions of each op and decides nothing; what makes one instruction of several is a
pass (passes.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from edge.errors import UnsupportedError
from edge.graph import Graph
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
    Weight,
)
from edge.payload import Run
from runtimes.native.buffers import allocate
from runtimes.native.matrix import Matrix, matrix_of, padded
from runtimes.native.passes import PASSES, Passes
from runtimes.native.precision import DEFAULT, INPUTS
from runtimes.native.program import Instruction, Program, Steps, Value, Vector

# The crest factor of a block of 32 activations (its largest over its RMS) from which on 16 bits are kept instead of 8.
# Few blocks are, and they hold most of what rounding to 8 bits loses. 0: all blocks.
CREST, ALL = 4.5, 0.0
_CRESTS = {"int8": CREST, "int16": ALL}


def build(
    graph: Graph, runs: Mapping[str, tuple[Run, ...]], *, exact: bool, precision: Mapping[str, str] = DEFAULT,
    passes: Passes = PASSES,
) -> Program:  # fmt: skip
    """The program of a graph. `runs` are what each weight is stored in.

    `precision` is how linears take their input, by the role of their weight: see precision.py; roles that it lacks take
    int8. `exact` keeps all activations in float32. Raises UnsupportedError for an op that the engine does not know.
    """
    for on_graph in passes.graph:
        graph = on_graph(graph)
    steps = _Translation(graph, runs, {} if exact else precision, "float" if exact else "int8").run()
    for on_steps in passes.steps:
        steps = on_steps(steps)
    return allocate(steps)


class _Translation:
    def __init__(
        self, graph: Graph, runs: Mapping[str, tuple[Run, ...]], precision: Mapping[str, str], otherwise: str
    ) -> None:
        self.graph = graph
        self.matrices = {w.name: matrix_of(w, runs[w.name]) for w in graph.weights if w.is_matrix}
        self.precision = precision
        self.otherwise = otherwise
        self.steps: list[Instruction] = []
        self.values = {name: Value(width) for name, width in graph.widths.items()}
        self.crests: dict[str, float] = {}  # of the values that linears read as codes
        for op in graph.ops:
            how = self._input(*_read_by(op))
            if how != "float":
                crest = _CRESTS[how]
                self.crests[op.inputs[0]] = min(crest, self.crests.get(op.inputs[0], crest))

    def _input(self, *weights: Weight) -> str:
        """How what is multiplied with some weights is taken: in the most precise way that any of them wants.

        Weights that are floats, or whose runs straddle blocks or groups, are multiplied by floats.
        """
        wanted = {self.precision.get(weight.role, self.otherwise) for weight in weights}
        if not all(self._matrix(weight).takes_codes(padded(weight.stored[1])) for weight in weights):
            wanted.add("float")
        return next((how for how in INPUTS[::-1] if how in wanted), "float")

    def run(self) -> Steps:
        for op in self.graph.ops:
            translate = TRANSLATORS.get(type(op.attrs))
            if translate is None:
                raise UnsupportedError(f"the native engine does not know the op {op.kind} ({op.output})")
            translate(self, op)
        return Steps(tuple(self.steps), self.values)

    def _emit(self, kind: str, **operands: Any) -> None:
        self.steps.append(Instruction(kind, operands))

    def _matrix(self, weight: Weight) -> Matrix:
        return self.matrices[weight.name]

    def _embed(self, op: Op[Embed]) -> None:
        self._emit("embed", output=op.output, matrix=self._matrix(op.attrs.weight), scale=op.attrs.scale)

    def _norm(self, op: Op[Norm]) -> None:
        weight = Vector(op.attrs.weight.name, op.attrs.offset)
        self._emit("norm", input=op.inputs[0], output=op.output, codes=None, weight=weight, eps=op.attrs.eps, crest=0.0)

    def _linear(self, op: Op[Linear]) -> None:
        (source,) = op.inputs
        if self._input(op.attrs.weight) != "float":
            source = self._codes_of(source)
        bias = Vector(op.attrs.bias.name) if op.attrs.bias else None
        self._emit("linear", input=source, residual=None, outputs=(op.output,), matrix=self._matrix(op.attrs.weight),
                   biases=(bias,))  # fmt: skip

    def _codes_of(self, value: str) -> str:
        """The codes of a value, which are made where the first linear reads them."""
        codes = f"{value}/codes"
        if codes not in self.values:
            self.values[codes] = Value(self.values[value].width, codes=True)
            self._emit("quantize", input=value, output=codes, crest=self.crests[value])
        return codes

    def _rope(self, op: Op[Rope]) -> None:
        self._emit("rope", input=op.inputs[0], output=op.output, heads=op.attrs.heads, rope=op.attrs.rope)

    def _attention(self, op: Op[Attention]) -> None:
        attrs = op.attrs
        queries, keys, values = op.inputs
        self._emit("kv_write", keys=keys, values=values, layer=attrs.layer, rope=None)
        self._emit("attention", queries=queries, output=op.output, layer=attrs.layer, heads=attrs.heads, rope=None,
                   scale=attrs.scale, softcap=attrs.softcap or 0.0)  # fmt: skip

    def _latent_attention(self, op: Op[LatentAttention]) -> None:
        """The absorbed form, for any number of rows: `key_up` goes into the queries, `value_up` reads mixed latents."""
        attrs = op.attrs
        q_nope, q_rope, latent, k_rope = op.inputs
        absorbed, mixed = f"{op.output}/absorbed", f"{op.output}/latents"
        for name in (absorbed, mixed):
            self.values[name] = Value(attrs.heads * attrs.latent_dim)
        self._head_linear(q_nope, absorbed, attrs.key_up)
        self._emit("kv_write", keys=k_rope, values=latent, layer=attrs.layer, rope=None)
        self._emit("latent_attention", queries=q_rope, latent_queries=absorbed, output=mixed, layer=attrs.layer,
                   heads=attrs.heads, rope=None, scale=attrs.scale)  # fmt: skip
        self._head_linear(mixed, op.output, attrs.value_up)

    def _head_linear(self, source: str, output: str, weight: Weight) -> None:
        how = self._input(weight)
        if how != "float" and self._matrix(weight).takes_codes(weight.stored[1]):  # the next head's numbers follow
            self.crests.setdefault(source, _CRESTS[how])
            source = self._codes_of(source)
        self._emit("head_linear", input=source, output=output, matrix=self._matrix(weight))

    def _gate(self, op: Op[Gate]) -> None:
        self._emit("gate", gate=op.inputs[0], up=op.inputs[1], output=op.output, activation=op.attrs.activation)

    def _router(self, op: Op[Router]) -> None:
        attrs = op.attrs
        bias = Vector(attrs.bias.name) if attrs.bias else None
        self._emit("router", logits=op.inputs[0], output=op.output, bias=(bias,), top_k=attrs.top_k,
                   sigmoid=int(attrs.score == "sigmoid"), normalize=int(attrs.normalize), scale=attrs.scale,
                   groups=attrs.groups, top_groups=attrs.top_groups, group_best=attrs.group_best)  # fmt: skip

    def _experts(self, op: Op[Experts]) -> None:
        attrs, (source, routing) = op.attrs, op.inputs
        gate, up, down = attrs.gate, attrs.up, attrs.down
        top_k = self.graph.experts_chosen(op)
        if self._input(gate, up) != "float":
            source = self._codes_of(source)
        how, inner = self._input(down), f"{op.output}/inner"
        self.values[inner] = Value(top_k * padded(gate.shape[1]), codes=how != "float")
        self._emit("expert_gate", input=source, routing=routing, output=inner, gate=self._matrix(gate),
                   up=self._matrix(up), top_k=top_k, activation=attrs.activation,
                   crest=_CRESTS.get(how, 0.0))  # fmt: skip
        self._emit("expert_down", input=inner, routing=routing, output=op.output, matrix=self._matrix(down),
                   top_k=top_k)  # fmt: skip

    def _add(self, op: Op[Add]) -> None:
        self._emit("add", left=op.inputs[0], right=op.inputs[1], output=op.output)

    def _select(self, op: Op[Select]) -> None:
        self._emit("select", input=op.inputs[0], output=op.output)

    def _softcap(self, op: Op[Softcap]) -> None:
        self._emit("softcap", input=op.inputs[0], output=op.output, cap=op.attrs.cap)


def _read_by(op: Op[Any]) -> tuple[Weight, ...]:
    """The weights that multiply an op's first input."""
    attrs = op.attrs
    if isinstance(attrs, Linear):
        return (attrs.weight,)
    return (attrs.gate, attrs.up) if isinstance(attrs, Experts) else ()


TRANSLATORS: dict[type[Any], Callable[[_Translation, Op[Any]], None]] = {
    Embed: _Translation._embed,
    Norm: _Translation._norm,
    Linear: _Translation._linear,
    Rope: _Translation._rope,
    Attention: _Translation._attention,
    LatentAttention: _Translation._latent_attention,
    Gate: _Translation._gate,
    Router: _Translation._router,
    Experts: _Translation._experts,
    Add: _Translation._add,
    Select: _Translation._select,
    Softcap: _Translation._softcap,
}
