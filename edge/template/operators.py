"""The operators of expressions, paid for before they are carried out."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from edge.messages import Arguments
from edge.template.formatting import format_percent
from edge.template.text import concat
from edge.template.values import to_text
from edge.template.work import Work


def add(work: Work, left: Any, right: Any) -> Any:
    if isinstance(left, Arguments) and isinstance(right, str):
        left = str(left)
    elif isinstance(right, Arguments) and isinstance(left, str):
        right = str(right)
    if isinstance(left, str) and isinstance(right, str):
        work.make(len(left) + len(right))
        return concat((left, right))
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        work.spend(len(left) + len(right))
    return _bounded(work, left + right)


def multiply(work: Work, left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        work.check_bits(left.bit_length() + right.bit_length())
    for value, times in ((left, right), (right, left)):
        if isinstance(times, int) and isinstance(value, str):
            work.make(len(value) * times)
            return concat([value] * times)
        if isinstance(times, int) and isinstance(value, (list, tuple)):
            work.spend(len(value) * max(times, 0))
    return left * right


def power(work: Work, left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int) and right > 0:
        work.check_bits(left.bit_length() * right)
    return left**right


def remainder(work: Work, left: Any, right: Any) -> Any:
    return format_percent(work, left, right) if isinstance(left, str) else left % right


def subtract(work: Work, left: Any, right: Any) -> Any:
    work.read(left)  # of two views of a dict it is a set
    work.read(right)
    return _bounded(work, left - right)


def glue(work: Work, values: list[Any]) -> str:
    """The ~ operator."""
    parts = [to_text(work, value) for value in values]
    work.make(sum(map(len, parts)))
    return concat(parts)


def _bounded(work: Work, value: Any) -> Any:
    if isinstance(value, int):
        work.check_bits(value.bit_length())
    return value


def _within(left: Any, right: Any) -> bool:
    return left in right


def _without(left: Any, right: Any) -> bool:
    return left not in right


BINARY: dict[str, Callable[[Work, Any, Any], Any]] = {
    "+": add,
    "-": subtract,
    "*": multiply,
    "/": lambda work, left, right: left / right,
    "//": lambda work, left, right: left // right,
    "%": remainder,
    "**": power,
}
COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "gteq": operator.ge,
    "lt": operator.lt,
    "lteq": operator.le,
    "in": _within,
    "notin": _without,
}
