"""What all ops have in common: weights, the op itself, and what the verifier of a Graph knows of a kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, Literal, Protocol, TypeVar

from edge.decoder import DecoderSpec

Role = Literal[
    "embed", "head", "norm", "query", "key", "value", "output", "gate", "up", "down", "router",
    "query_down", "query_nope", "query_rope", "key_rope", "latent", "key_up", "value_up",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight by canonical name: a vector [size], a matrix [rows, columns], or a stack of them [count, rows, columns].

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

    @property
    def stored(self) -> tuple[int, ...]:
        """The shape in which it is stored, quantized and read by rows: a stack's matrices stand under one another."""
        return self.shape if len(self.shape) < 3 else (self.shape[0] * self.shape[1], self.shape[2])

    @property
    def is_matrix(self) -> bool:
        """Whether it is one matrix or a stack of them: what recipes choose schemes for."""
        return len(self.shape) > 1


A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Op(Generic[A]):
    """One step: the value that it makes, the values that it reads, and the attributes of its kind."""

    output: str
    inputs: tuple[str, ...]
    attrs: A

    @property
    def kind(self) -> str:
        """The name of its kind."""
        attrs: Any = self.attrs
        return str(getattr(attrs, "kind", type(attrs).__name__))

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
    """What the verifier knows of a kind: how many inputs it takes, and its width rule.

    `attends` names the layer that an op of this kind keeps tokens for, if it does: no two ops may keep for one layer.
    """

    arity: int
    width: Width
    attends: Callable[[Any], int] | None = None


def same_width(attrs: Any, inputs: Sequence[int], spec: DecoderSpec) -> int:
    """The width rule of ops that work number by number."""
    return inputs[0] if len(set(inputs)) == 1 else -1
