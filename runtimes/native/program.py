"""The flat program that the native engine runs, as data: instructions over values, then over numbered buffers.

program.def lists the instructions and their operands. While a program is made, values have names, and a matrix or a
vector stands for itself; `Program.tables` is what the engine gets, with numbers instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runtimes.native import schema
from runtimes.native.matrix import Matrix

KV_DTYPES = ("float32", "float16", "int8")


@dataclass(frozen=True, slots=True)
class Vector:
    """A norm's weight or a bias, and what is added to it."""

    name: str
    offset: float = 0.0


@dataclass(frozen=True)
class Instruction:
    """One step. Raises InternalError for operands that are not those of its kind."""

    kind: str
    operands: dict[str, Any]

    def __post_init__(self) -> None:
        schema.check(self.kind, self.operands)

    def __getitem__(self, name: str) -> Any:
        return self.operands[name]

    @property
    def reads(self) -> tuple[str, ...]:
        return schema.buffers_of(self.kind, self.operands, written=False)

    @property
    def writes(self) -> tuple[str, ...]:
        return schema.buffers_of(self.kind, self.operands, written=True)

    def but(self, **operands: Any) -> Instruction:
        """The same with some other operands."""
        return Instruction(self.kind, {**self.operands, **operands})


@dataclass(frozen=True, slots=True)
class Value:
    """What an instruction writes: rows of `width` floats, or the codes of such rows."""

    width: int
    codes: bool = False


@dataclass(frozen=True, slots=True)
class Steps:
    """A program before its values have buffers: each is written once, before it is read."""

    instructions: tuple[Instruction, ...]
    values: Mapping[str, Value]

    def readers(self) -> dict[str, list[Instruction]]:
        """The instructions that read a value; none for one that nothing reads."""
        found: dict[str, list[Instruction]] = {name: [] for step in self.instructions for name in step.writes}
        for step in self.instructions:
            for name in dict.fromkeys(step.reads):
                found[name].append(step)
        return found


@dataclass(frozen=True, slots=True)
class Program:
    """Instructions over numbered buffers. Buffer 0 holds the logits, buffer `hidden` the final norm's output."""

    instructions: tuple[Instruction, ...]
    buffers: tuple[dict[str, Any], ...]
    matrices: tuple[Matrix, ...]
    vectors: tuple[Vector, ...]
    hidden: int

    def tables(self) -> dict[str, Any]:
        """Instructions, buffers and matrices as the engine takes them."""
        matrices = {matrix: index for index, matrix in enumerate(self.matrices)}
        vectors = {vector: index for index, vector in enumerate(self.vectors)}

        def plain(operand: Any) -> Any:
            if isinstance(operand, tuple):
                return [plain(item) for item in operand]
            if isinstance(operand, Matrix):
                return matrices[operand]
            return vectors[operand] if isinstance(operand, Vector) else operand

        return {
            "instructions": [
                {"kind": step.kind, **{name: plain(operand) for name, operand in step.operands.items()}}
                for step in self.instructions
            ],
            "buffers": list(self.buffers),
            "matrices": [matrix.record() for matrix in self.matrices],
        }
