"""The flat program that the native engine runs, as data: numbered buffers, instructions, packed matrices.

What the C++ side does with it, and the operands of each instruction, are listed in src/program.hpp.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from edge.ops import Weight
from edge.payload import Scheme

NONE = -1
KINDS = ("embed", "norm", "quantize", "linear", "store", "attention", "gate", "add", "select", "softcap", "rope")
KV_DTYPES = ("float32", "float16", "int8")
ACTIVATIONS = ("silu", "gelu_tanh")


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a linear: where they go (NONE where gated), and the vector that is their bias, or NONE."""

    buffer: int
    rows: int
    bias: int


@dataclass(frozen=True, slots=True)
class Instruction:
    """One step; operands by kind are listed in src/program.hpp. The fields' order is that of the C++ side."""

    kind: str
    a: int = NONE
    b: int = NONE
    c: int = NONE
    out: int = NONE
    quantized: int = NONE
    quantized_out: int = NONE
    matrix: int = NONE
    vector: int = NONE
    heads: int = 1
    kv_heads: int = 1
    dim: int = 0
    rotary: int = 0
    rope: int = NONE
    layer: int = 0
    gated: int = 0
    activation: int = 0
    scale: float = 1.0
    eps: float = 0.0
    softcap: float = 0.0
    crest: float = 0.0
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class Vector:
    """A norm's weight or a bias, and what is added to it."""

    name: str
    offset: float


@dataclass(frozen=True, slots=True)
class Matrix:
    """One or more weights of one scheme over the same columns. Interleaved: stored 32 rows of each in turn."""

    weights: tuple[Weight, ...]
    scheme: Scheme | None
    dtype: str
    interleaved: bool


@dataclass(slots=True)
class Program:
    """Buffers are (width, selected): a row a token, or one a wanted row. Buffer 0 holds the logits."""

    instructions: list[Instruction] = field(default_factory=list)
    buffers: list[tuple[int, bool]] = field(default_factory=list)
    quantized: list[tuple[int, bool]] = field(default_factory=list)
    matrices: list[Matrix] = field(default_factory=list)
    vectors: list[Vector] = field(default_factory=list)
    hidden: int = NONE
