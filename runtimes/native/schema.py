"""The schema of programs: the records of program.def, which the C++ side includes, as this side reads them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from edge import texts
from edge.errors import InternalError

_LINE = re.compile(r"\s*(?:(RECORD|INSTRUCTION|FIELD)\((\w+), (\w+)\)|END\(\w+\)|//.*)?")
_READS = ("Reads", "MaybeReads")
_WRITES = ("Writes", "MaybeWrites", "WritesList")
_OTHERS = (
    "MatrixId", "VectorId", "RopeId", "LayerId", "MaybeRope", "MaybeVectorList",
    "Integer", "Real", "Flag", "Text", "IntegerList", "Activation", "RunList",
)  # fmt: skip


def parse(schema: str) -> tuple[dict[str, dict[str, str]], str]:
    """The fields of each instruction, name → type, and the text of the schema as the C++ side gives it.

    Raises InternalError for a line that is neither a comment nor a part of a record, and for an unknown type.
    """
    instructions: dict[str, dict[str, str]] = {}
    fields: dict[str, str] = {}
    lines: list[str] = []
    for line in schema.splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            raise InternalError(f"program.def has a line that is none of the schema: {line}")
        what, first, second = match.groups()
        if what == "FIELD":
            if first not in (*_READS, *_WRITES, *_OTHERS):
                raise InternalError(f"program.def has a field {second} of the unknown type {first}")
            fields[second] = first
            lines[-1] += f" {second}:{first}"
        elif what is not None:
            fields = {}
            lines.append(f"{what.lower()} {second}")
            if what == "INSTRUCTION":
                instructions[second] = fields
    return instructions, "".join(f"{line}\n" for line in lines)


INSTRUCTIONS, TEXT = parse(texts.read(Path(__file__).with_name("program.def")))
"""INSTRUCTIONS: kind → its fields, name → type. TEXT is what an extension built from this schema answers."""


def check(kind: str, operands: dict[str, Any]) -> None:
    """Raise InternalError unless an instruction of that kind has just these operands."""
    if kind not in INSTRUCTIONS:
        raise InternalError(f"the native engine has no instruction {kind}")
    for name in INSTRUCTIONS[kind]:
        if name not in operands:
            raise InternalError(f"the instruction {kind} lacks its operand {name}")
    for name in operands:
        if name not in INSTRUCTIONS[kind]:
            raise InternalError(f"the instruction {kind} has no operand {name}")


def buffers_of(kind: str, operands: dict[str, Any], *, written: bool) -> tuple[Any, ...]:
    """What an instruction writes, or what it reads, in the order of its operands."""
    found: list[Any] = []
    for name, type_ in INSTRUCTIONS[kind].items():
        if type_ in (_WRITES if written else _READS) and operands[name] is not None:
            found.extend(operands[name] if type_ == "WritesList" else [operands[name]])
    return tuple(found)


def with_buffers(kind: str, operands: dict[str, Any], number: dict[str, int]) -> dict[str, Any]:
    """The operands with the numbers of their buffers instead of the names of values."""
    changed = dict(operands)
    for name, type_ in INSTRUCTIONS[kind].items():
        if type_ == "WritesList":
            changed[name] = [number[value] for value in operands[name]]
        elif type_ in (*_READS, *_WRITES) and operands[name] is not None:
            changed[name] = number[operands[name]]
    return changed
