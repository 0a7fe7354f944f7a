"""From a Graph to the native engine's program.

Ops of the Graph are put together where one instruction does the work of several: sibling linears, a gate over two of
them, a residual, the rotation and storing of keys, and the quantization of whatever only linears read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from edge.errors import UnsupportedError
from edge.graph import HIDDEN, LOGITS, Graph
from edge.ops import Add, Attention, Embed, Gate, Linear, Norm, Op, Rope, Select, Softcap, Weight
from edge.payload import Scheme
from runtimes.native.passes import select_early
from runtimes.native.program import ACTIVATIONS, NONE, Instruction, Matrix, Part, Program, Vector

# A block of 32 activations whose largest is so many times its RMS is kept in 16 bits instead of 8: few blocks are, and
# they hold most of what rounding to 8 bits loses. 0 keeps all, and costs nothing to speak of in the head.
CREST, ALL = 4.5, 0.0


def build(graph: Graph, schemes: Mapping[str, Scheme | None], dtypes: Mapping[str, str], *, exact: bool) -> Program:
    """The program of a graph. `dtypes` are "float16" or "float32" for weights whose scheme is None.

    `exact` keeps all activations in float32. Raises UnsupportedError for an op that the engine does not know, or a
    value that is rotated and read unrotated too.
    """
    return _Builder(select_early(graph), schemes, dtypes, exact).run()


class _Builder:
    def __init__(
        self, graph: Graph, schemes: Mapping[str, Scheme | None], dtypes: Mapping[str, str], exact: bool
    ) -> None:
        self.graph = graph
        self.schemes = schemes
        self.dtypes = dtypes
        self.exact = exact
        self.program = Program()
        self.where: dict[str, int] = {}  # value → buffer
        self.codes: dict[str, int] = {}  # value → quantized buffer
        self.holders: list[str] = []  # quantized buffer → the value that it holds
        self.selected: set[str] = set()  # values of the wanted rows alone
        self.free: dict[tuple[int, bool], list[int]] = {}
        self.done: set[str] = set()  # outputs of ops that an earlier instruction computes
        self.users: dict[str, list[Op[Any]]] = {}
        for op in graph.ops:
            for name in op.inputs:
                self.users.setdefault(name, []).append(op)
            if isinstance(op.attrs, Select) or op.inputs[0] in self.selected:
                self.selected.add(op.output)
        self.siblings = {op.output: group for group in graph.siblings for op in group}
        self.makers = {op.output: op for op in graph.ops}
        self.order = {op.output: index for index, op in enumerate(graph.ops)}
        self.last = {name: index for index, op in enumerate(graph.ops) for name in op.inputs}
        self.head_input = [op.inputs[0] for op in graph.ops if isinstance(op.attrs, Linear)][-1]
        self.index = 0  # of the op that is being built

    def run(self) -> Program:
        self.program.buffers.append((self.graph.widths[LOGITS], True))
        makers: dict[type[Any], Callable[[Op[Any]], None]] = {
            Embed: self._embed, Norm: self._norm, Linear: self._linear, Rope: self._rope, Gate: self._gate,
            Attention: self._attention, Add: self._add, Select: self._select, Softcap: self._softcap,
        }  # fmt: skip
        for index, op in enumerate(self.graph.ops):
            self.index = index
            maker = makers.get(type(op.attrs))
            if maker is None:
                raise UnsupportedError(f"the native engine does not know the op {op.kind} ({op.output})")
            if op.output not in self.done:
                maker(op)
            self._release(op)
        self.program.hidden = self.where[HIDDEN]
        return self.program

    def _release(self, op: Op[Any]) -> None:
        """Let later values use the buffers of those that this op was the last to read."""
        live = {buffer for name, buffer in self.where.items() if self.last.get(name, -1) > self.index or name == HIDDEN}
        for name in op.inputs:
            if name in self.where and self.where[name] not in live:
                buffer = self.where.pop(name)
                self.free.setdefault(self.program.buffers[buffer], []).append(buffer)

    def _buffer(self, op: Op[Any]) -> int:
        """A buffer for an op's output: that of a value that is no longer read, or a new one."""
        if op.output == LOGITS:
            self.where[LOGITS] = 0
            return 0
        shape = (self.graph.widths[op.output], op.output in self.selected)
        if self.free.get(shape):
            buffer = self.free[shape].pop()
        else:
            buffer = len(self.program.buffers)
            self.program.buffers.append(shape)
        self.where[op.output] = buffer
        return buffer

    def _emit(self, kind: str, **operands: Any) -> None:
        self.program.instructions.append(replace(Instruction(kind), **operands))

    def _vector(self, weight: Weight | None, offset: float = 0.0) -> int:
        if weight is None:
            return NONE
        vector = Vector(weight.name, offset)
        if vector not in self.program.vectors:
            self.program.vectors.append(vector)
        return self.program.vectors.index(vector)

    def _matrix(self, weights: Sequence[Weight], *, interleaved: bool = False) -> int:
        name = weights[0].name
        matrix = Matrix(tuple(weights), self.schemes[name], self.dtypes[name], interleaved)
        if matrix not in self.program.matrices:
            self.program.matrices.append(matrix)
        return self.program.matrices.index(matrix)

    def _quantizes(self, value: str) -> bool:
        """Whether linears read a value as codes."""
        return not self.exact and any(
            isinstance(op.attrs, Linear) and self.schemes[op.attrs.weight.name] for op in self.users.get(value, ())
        )

    def _only_codes(self, value: str) -> bool:
        """Whether nothing reads a value but linears that take codes."""
        return not self.exact and all(
            isinstance(op.attrs, Linear) and self.schemes[op.attrs.weight.name] is not None for op in self.users[value]
        )

    def _codes(self, value: str) -> tuple[int, float]:
        """The quantized buffer of a value, and the crest of its quantization."""
        shape = (self.graph.widths[value], value in self.selected)
        for buffer, holder in enumerate(self.holders):
            if self.program.quantized[buffer] == shape and self.last[holder] < self.index:
                break
        else:
            buffer = len(self.holders)
            self.holders.append(value)
            self.program.quantized.append(shape)
        self.holders[buffer] = value
        self.codes[value] = buffer
        return buffer, ALL if value == self.head_input else CREST

    def _quantize(self, value: str) -> None:
        codes, crest = self._codes(value)
        self._emit("quantize", a=self.where[value], quantized_out=codes, crest=crest)

    def _embed(self, op: Op[Embed]) -> None:
        matrix = self._matrix([op.attrs.weight])
        self._emit("embed", matrix=matrix, out=self._buffer(op), scale=op.attrs.scale)

    def _norm(self, op: Op[Norm]) -> None:
        attrs = op.attrs
        source, out = self.where[op.inputs[0]], self._buffer(op)
        codes, crest = self._codes(op.output) if self._quantizes(op.output) else (NONE, 0.0)
        self._emit("norm", a=source, out=out, vector=self._vector(attrs.weight, attrs.offset), heads=attrs.pieces,
                   dim=attrs.dim, eps=attrs.eps, quantized_out=codes, crest=crest)  # fmt: skip

    def _linear(self, op: Op[Linear]) -> None:
        weight = op.attrs.weight
        scheme = self.schemes[weight.name]
        group = [
            other for other in self.siblings[op.output]
            if other.output not in self.done and self.schemes[other.attrs.weight.name] == scheme
            and self.dtypes[other.attrs.weight.name] == self.dtypes[weight.name]
        ]  # fmt: skip
        source = op.inputs[0]
        if scheme is not None and not self.exact:
            if source not in self.codes:
                self._quantize(source)
            operands = {"quantized": self.codes[source]}
        else:
            operands = {"a": self.where[source]}
        gate = self._gate_over(group)
        if gate:
            self._gated(group, gate, operands)
        else:
            self._plain(group, operands)

    def _plain(self, group: Sequence[Op[Linear]], operands: dict[str, int]) -> None:
        residual = self._residual_after(group[0]) if len(group) == 1 else None
        if residual:
            self.done.add(residual.output)
            outputs = [self.where[residual.output]]
        else:
            outputs = [self._buffer(op) for op in group]
        self.done.update(op.output for op in group)
        parts = tuple(
            Part(buffer, op.attrs.weight.shape[0], self._vector(op.attrs.bias))
            for buffer, op in zip(outputs, group, strict=True)
        )
        matrix = self._matrix([op.attrs.weight for op in group])
        self._emit("linear", **operands, matrix=matrix, parts=parts, b=outputs[0] if residual else NONE)

    def _residual_after(self, op: Op[Linear]) -> Op[Add] | None:
        """The addition to a linear's output that comes next and may be done in place, its buffer then known."""
        users = self.users.get(op.output, [])
        if len(users) != 1 or not isinstance(users[0].attrs, Add) or users[0].output == LOGITS:
            return None
        add = users[0]
        other = add.inputs[0] if add.inputs[1] == op.output else add.inputs[1]
        index = self.order[add.output]
        if other in (op.output, *op.inputs) or index != self.order[op.output] + 1 or self.last[other] != index:
            return None
        self.where[add.output] = self.where[other]
        return add

    def _gate_over(self, group: Sequence[Op[Linear]]) -> Op[Gate] | None:
        """The gate that alone reads two sibling linears, in this order."""
        users = self.users.get(group[0].output, [])
        if len(group) != 2 or len(users) != 1 or not isinstance(users[0].attrs, Gate):
            return None
        fits = users[0].inputs == tuple(op.output for op in group) and self.users[group[1].output] == users
        return users[0] if fits else None

    def _gated(self, group: Sequence[Op[Linear]], gate: Op[Gate], operands: dict[str, int]) -> None:
        """Both linears and the gate in one instruction."""
        parts = tuple(Part(NONE, op.attrs.weight.shape[0], self._vector(op.attrs.bias)) for op in group)
        matrix = self._matrix([op.attrs.weight for op in group], interleaved=True)
        if self._only_codes(gate.output):
            codes, crest = self._codes(gate.output)
            operands = {**operands, "quantized_out": codes}
        else:
            crest = 0.0
            operands = {**operands, "out": self._buffer(gate)}
        self._emit("linear", **operands, matrix=matrix, parts=parts, gated=1, crest=crest,
                   activation=ACTIVATIONS.index(gate.attrs.activation))  # fmt: skip
        self.done.update((gate.output, *(op.output for op in group)))

    def _rope(self, op: Op[Rope]) -> None:
        """Rotation in place; for an attention that reads both rotated values, it is left to storing the keys."""
        source = op.inputs[0]
        if self.users[source] != [op]:
            raise UnsupportedError(f"the native engine turns {source} in place, so nothing but {op.output} may read it")
        self.where[op.output] = self.where[source]
        if self._stored_with(op) is None:
            attrs = op.attrs
            self._emit("rope", a=self.where[op.output], heads=attrs.heads, dim=attrs.dim, rotary=attrs.rotary,
                       rope=attrs.rope)  # fmt: skip

    def _stored_with(self, op: Op[Rope]) -> Op[Attention] | None:
        """The attention that alone reads a rotated value, if it reads another one that is rotated alike."""
        users = self.users[op.output]
        if len(users) != 1 or not isinstance(users[0].attrs, Attention):
            return None
        made = [self.makers[name].attrs if name in self.makers else None for name in users[0].inputs[:2]]
        alike = {(attrs.rope, attrs.rotary) if isinstance(attrs, Rope) else None for attrs in made}
        return users[0] if alike == {(op.attrs.rope, op.attrs.rotary)} else None

    def _attention(self, op: Op[Attention]) -> None:
        attrs = op.attrs
        q, k, v = (self.where[name] for name in op.inputs)
        rotation = self.makers.get(op.inputs[0])
        rope = rotation.attrs if rotation and isinstance(rotation.attrs, Rope) and self._stored_with(rotation) else None
        common = {"heads": attrs.heads, "kv_heads": attrs.kv_heads, "dim": attrs.dim, "layer": attrs.layer}
        self._emit(
            "store", a=q, b=k, c=v, rope=rope.rope if rope else NONE, rotary=rope.rotary if rope else 0, **common
        )
        out = self._buffer(op)
        self._emit("attention", a=q, out=out, scale=attrs.scale, softcap=attrs.softcap or 0.0, **common)

    def _gate(self, op: Op[Gate]) -> None:
        gate, up = (self.where[name] for name in op.inputs)
        self._emit("gate", a=gate, b=up, out=self._buffer(op), activation=ACTIVATIONS.index(op.attrs.activation))

    def _add(self, op: Op[Add]) -> None:
        a, b = (self.where[name] for name in op.inputs)
        self._emit("add", a=a, b=b, out=self._buffer(op))

    def _select(self, op: Op[Select]) -> None:
        source = self.where[op.inputs[0]]
        self._emit("select", a=source, out=self._buffer(op))

    def _softcap(self, op: Op[Softcap]) -> None:
        source = self.where[op.inputs[0]]
        self._emit("softcap", a=source, out=self._buffer(op), softcap=op.attrs.cap)
