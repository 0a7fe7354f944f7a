"""Ops that work on each row by itself: embedding, norms, linears, and what works number by number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from edge.decoder import DecoderSpec
from edge.layers import Activation
from edge.ops.op import OpKind, Weight, same_width


@dataclass(frozen=True, slots=True)
class Embed:
    """(tokens) → [tokens, hidden]: rows of `weight` [vocab, hidden] times `scale`."""

    kind: ClassVar[str] = "embed"

    weight: Weight
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Norm:
    """x → same: RMS norm (arXiv:1910.07467) of `vectors` vectors of `dim` numbers each, times weight [dim] + offset."""

    kind: ClassVar[str] = "norm"

    weight: Weight
    vectors: int
    dim: int
    eps: float
    offset: float = 0.0


@dataclass(frozen=True, slots=True)
class Linear:
    """x → [tokens, rows]: x · weightᵀ, plus `bias` [rows] where there is one."""

    kind: ClassVar[str] = "linear"

    weight: Weight
    bias: Weight | None = None


@dataclass(frozen=True, slots=True)
class Gate:
    """gate, up → same: activation(gate) * up."""

    kind: ClassVar[str] = "gate"

    activation: Activation


@dataclass(frozen=True, slots=True)
class Add:
    """a, b → same: a + b."""

    kind: ClassVar[str] = "add"


@dataclass(frozen=True, slots=True)
class Select:
    """x → [wanted, width]: the rows whose logits are wanted."""

    kind: ClassVar[str] = "select"


@dataclass(frozen=True, slots=True)
class Softcap:
    """x → same: cap · tanh(x / cap)."""

    kind: ClassVar[str] = "softcap"

    cap: float


def _embed_width(attrs: Embed, inputs: Sequence[int], spec: DecoderSpec) -> int:
    shape = attrs.weight.shape
    return shape[1] if len(shape) == 2 and shape[0] == spec.vocab_size else -1


def _norm_width(attrs: Norm, inputs: Sequence[int], spec: DecoderSpec) -> int:
    fits = attrs.weight.shape == (attrs.dim,) and attrs.vectors * attrs.dim == inputs[0]
    return inputs[0] if fits else -1


def _linear_width(attrs: Linear, inputs: Sequence[int], spec: DecoderSpec) -> int:
    shape = attrs.weight.shape
    fits = len(shape) == 2 and shape[1] == inputs[0] and (attrs.bias is None or attrs.bias.shape == shape[:1])
    return shape[0] if fits else -1


EMBED = OpKind(1, _embed_width)
NORM = OpKind(1, _norm_width)
LINEAR = OpKind(1, _linear_width)
GATE = OpKind(2, same_width)
ADD = OpKind(2, same_width)
SELECT = OpKind(1, same_width)
SOFTCAP = OpKind(1, same_width)
