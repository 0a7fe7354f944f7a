"""Gives the values of a program their buffers: a value that is no longer read leaves its buffer to a later one."""

from __future__ import annotations

from typing import Any

from edge.graph import HIDDEN, LOGITS
from runtimes.native import schema
from runtimes.native.matrix import Matrix
from runtimes.native.program import Instruction, Program, Steps, Vector

# Where an instruction may write its one output over an operand: each number is read before it is written.
_IN_PLACE = {"linear": "residual", "rope": "input"}


def allocate(steps: Steps) -> Program:
    """The program of some steps. Buffers are shared by values of one width, kind and set of rows."""
    numbers: dict[str, int] = {LOGITS: 0}
    wanted = _wanted(steps)
    buffers = [_shape(steps, LOGITS, wanted)]
    free: dict[tuple[Any, ...], list[int]] = {}
    last = _last_reads(steps)
    for index, step in enumerate(steps.instructions):
        reused = _reused(step, index, last)
        for name in step.writes:
            shape = _shape(steps, name, wanted)
            key = tuple(shape.values())
            if name == LOGITS:
                continue
            if reused is not None:
                numbers[name] = numbers[reused]
            elif free.get(key):
                numbers[name] = free[key].pop()
            else:
                numbers[name] = len(buffers)
                buffers.append(shape)
        for name in (name for name, end in last.items() if end == index):
            if name not in (LOGITS, HIDDEN, reused):
                free.setdefault(tuple(_shape(steps, name, wanted).values()), []).append(numbers[name])
    return Program(
        tuple(
            Instruction(step.kind, schema.with_buffers(step.kind, step.operands, numbers))
            for step in steps.instructions
        ),
        tuple(buffers), _all(steps, Matrix), _all(steps, Vector), numbers[HIDDEN],
    )  # fmt: skip


def _shape(steps: Steps, name: str, wanted: set[str]) -> dict[str, Any]:
    """The fields of a buffer in program.def."""
    value = steps.values[name]
    return {"width": value.width, "codes": value.codes, "wanted": name in wanted}


def _wanted(steps: Steps) -> set[str]:
    """The values that have the wanted rows alone: what a select makes, and what is made of that."""
    found: set[str] = set()
    for step in steps.instructions:
        if step.kind == "select" or not found.isdisjoint(step.reads):
            found.update(step.writes)
    return found


def _last_reads(steps: Steps) -> dict[str, int]:
    """The index of the last instruction that needs a value.

    What an instruction that makes codes reads and writes is kept as long as those, and what a kv_write reads as long as
    the next instruction runs: threads may do either for themselves when they come to what follows. All outputs of one
    instruction are kept as long as any of them.
    """
    last: dict[str, int] = {}
    for index, step in enumerate(steps.instructions):
        for name in (*step.reads, *step.writes):
            last[name] = index
    for index, step in enumerate(steps.instructions):
        end = max((last[name] for name in step.writes), default=index + 1)
        for name in step.writes:
            last[name] = end
        if not step.writes or any(steps.values[name].codes for name in step.writes):
            for name in step.reads:
                last[name] = max(last[name], end)
    return last


def _reused(step: Instruction, index: int, last: dict[str, int]) -> str | None:
    """The operand that an instruction writes over, which nothing reads later and which it reads but once."""
    operand: str | None = step.operands.get(_IN_PLACE.get(step.kind, ""))
    if operand is None or operand in (HIDDEN, LOGITS):
        return None
    return operand if step.reads.count(operand) == 1 == len(step.writes) and last[operand] == index else None


def _all(steps: Steps, kind: type[Any]) -> tuple[Any, ...]:
    """Every matrix or vector once, in order of first use."""
    found: dict[Any, None] = {}
    for step in steps.instructions:
        for operand in step.operands.values():
            for item in operand if isinstance(operand, tuple) else (operand,):
                if isinstance(item, kind):
                    found.setdefault(item)
    return tuple(found)
