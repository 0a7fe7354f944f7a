"""The kinds of ops of a Graph: one small type of attributes each, and the table that says how they are checked.

All activations are [tokens, width]: `tokens` rows, one a new token. Readers dispatch on the type of `Op.attrs`; a kind
that a reader does not know is an UnsupportedError there. A new kind is a type here and an entry in `OPS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, Literal, Protocol, TypeVar

from edge.decoder import DecoderSpec
from edge.layers import Activation

Role = Literal["embed", "head", "norm", "query", "key", "value", "output", "gate", "up", "down"]


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight by canonical name; a matrix is [rows, columns], a vector [size].

    `role` is what it does in the decoder; a bias has the role of its matrix. `head_dim` is how many of its rows (query,
    key, value) or columns (output) belong to one head, 0 where there are no heads.
    """

    name: str
    shape: tuple[int, ...]
    role: Role
    head_dim: int = 0

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Embed:
    """(tokens) → [tokens, hidden]: rows of `weight` [vocab, hidden] times `scale`."""

    weight: Weight
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Norm:
    """x → same: RMS norm (arXiv:1910.07467) of each of `pieces` runs of `dim` numbers, times weight [dim] + offset."""

    weight: Weight
    pieces: int
    dim: int
    eps: float
    offset: float = 0.0


@dataclass(frozen=True, slots=True)
class Linear:
    """x → [tokens, rows]: x · weightᵀ, plus `bias` [rows] where there is one."""

    weight: Weight
    bias: Weight | None = None


@dataclass(frozen=True, slots=True)
class Rope:
    """x → same: rotates the first `rotary` of the `dim` numbers of each of `heads` heads by the positions.

    Pairs are half-split: number i with i + rotary/2. `rope` indexes the spec's ropes, which give the angles.
    """

    heads: int
    dim: int
    rope: int
    rotary: int


@dataclass(frozen=True, slots=True)
class Attention:
    """q, k, v → [tokens, heads * dim]: over what `layer` keeps in KV group `group`, and the new rows, kept as well.

    q is [tokens, heads * dim], k and v [tokens, kv_heads * dim]. `window` is that of `edge.layers.Gqa`.
    """

    heads: int
    kv_heads: int
    dim: int
    layer: int
    group: int
    scale: float
    window: int | None = None
    softcap: float | None = None


@dataclass(frozen=True, slots=True)
class Gate:
    """gate, up → same: activation(gate) * up."""

    activation: Activation


@dataclass(frozen=True, slots=True)
class Add:
    """a, b → same: a + b."""


@dataclass(frozen=True, slots=True)
class Select:
    """x → [wanted, width]: the rows whose logits are wanted."""


@dataclass(frozen=True, slots=True)
class Softcap:
    """x → same: cap · tanh(x / cap)."""

    cap: float


Attrs = Embed | Norm | Linear | Rope | Attention | Gate | Add | Select | Softcap
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Op(Generic[A]):
    """One step: the value that it makes, the values that it reads, and the attributes of its kind."""

    output: str
    inputs: tuple[str, ...]
    attrs: A

    @property
    def kind(self) -> str:
        """The name of its kind in `OPS`; that of the type for one that is not there."""
        known = OPS.get(type(self.attrs))
        return known.name if known else type(self.attrs).__name__

    @property
    def weights(self) -> tuple[Weight, ...]:
        """Its weights in the order of the attributes: a bias comes after its matrix."""
        attrs: Any = self.attrs
        found = (getattr(attrs, field.name) for field in fields(attrs))
        return tuple(value for value in found if isinstance(value, Weight))


class Width(Protocol):
    """The output width that an op's attributes and input widths imply; -1 where they contradict each other."""

    def __call__(self, attrs: Any, inputs: Sequence[int], spec: DecoderSpec) -> int: ...


@dataclass(frozen=True, slots=True)
class OpKind:
    """What the verifier knows of a kind: its name, how many inputs it takes, and its width rule.

    `attends` names the layer that an op of this kind keeps tokens for, if it does: no two ops may keep for one layer.
    """

    name: str
    arity: int
    width: Width
    attends: Callable[[Any], int] | None = None


def _embed_width(attrs: Embed, inputs: Sequence[int], spec: DecoderSpec) -> int:
    shape = attrs.weight.shape
    return shape[1] if len(shape) == 2 and shape[0] == spec.vocab_size else -1


def _norm_width(attrs: Norm, inputs: Sequence[int], spec: DecoderSpec) -> int:
    fits = attrs.weight.shape == (attrs.dim,) and attrs.pieces * attrs.dim == inputs[0]
    return inputs[0] if fits else -1


def _linear_width(attrs: Linear, inputs: Sequence[int], spec: DecoderSpec) -> int:
    shape = attrs.weight.shape
    fits = len(shape) == 2 and shape[1] == inputs[0] and (attrs.bias is None or attrs.bias.shape == shape[:1])
    return shape[0] if fits else -1


def _rope_width(attrs: Rope, inputs: Sequence[int], spec: DecoderSpec) -> int:
    fits = attrs.heads * attrs.dim == inputs[0] and 0 < attrs.rotary <= attrs.dim
    return inputs[0] if fits and 0 <= attrs.rope < len(spec.ropes) else -1


def _attention_width(attrs: Attention, inputs: Sequence[int], spec: DecoderSpec) -> int:
    kv = attrs.kv_heads * attrs.dim
    fits = list(inputs) == [attrs.heads * attrs.dim, kv, kv] and attrs.heads % attrs.kv_heads == 0
    return inputs[0] if fits and _is_layer_of(attrs, spec) else -1


def _is_layer_of(attrs: Attention, spec: DecoderSpec) -> bool:
    """Whether an attention keeps what the spec says that its layer keeps."""
    if not 0 <= attrs.layer < len(spec.layers):
        return False
    kept = spec.layers[attrs.layer].attention.kv
    groups = spec.kv_groups
    return (
        0 <= attrs.group < len(groups)
        and groups[attrs.group] == kept
        and (attrs.kv_heads, attrs.dim, attrs.window) == (kept.kv_heads, kept.key_dim, kept.window)
    )


def _same_width(attrs: Any, inputs: Sequence[int], spec: DecoderSpec) -> int:
    return inputs[0] if len(set(inputs)) == 1 else -1


OPS: dict[type[Any], OpKind] = {
    Embed: OpKind("embed", 1, _embed_width),
    Norm: OpKind("norm", 1, _norm_width),
    Linear: OpKind("linear", 1, _linear_width),
    Rope: OpKind("rope", 1, _rope_width),
    Attention: OpKind("attention", 3, _attention_width, attends=lambda attrs: int(attrs.layer)),
    Gate: OpKind("gate", 2, _same_width),
    Add: OpKind("add", 2, _same_width),
    Select: OpKind("select", 1, _same_width),
    Softcap: OpKind("softcap", 1, _same_width),
}
