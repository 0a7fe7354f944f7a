"""The tests of templates, as in `x is defined`: jinja2's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jinja2 import tests

from edge.template.values import Function
from edge.template.work import Work

_JINJA: dict[str, Callable[..., Any]] = tests.TESTS  # type: ignore[assignment]
# These look at all of a value; the others at its type, or at a number.
_WHOLE = (
    "==", "eq", "equalto", "!=", "ne", ">", "gt", "greaterthan", "ge", ">=", "<", "lt", "lessthan", "<=", "le", "in",
    "lower", "upper",
)  # fmt: skip
_BY_TYPE = (
    "boolean", "defined", "divisibleby", "escaped", "even", "false", "float", "integer", "iterable", "mapping", "none",
    "number", "odd", "sameas", "sequence", "string", "true", "undefined",
)  # fmt: skip


def _whole(name: str) -> Callable[..., Any]:
    def run(work: Work, value: Any, *others: Any) -> Any:
        for each in (value, *others):
            work.read(each)
        return _JINJA[name](value, *others)

    return run


def _by_type(name: str) -> Callable[..., Any]:
    return lambda work, *values: _JINJA[name](*values)


PREDICATES: dict[str, Callable[..., Any]] = {
    **{name: _whole(name) for name in _WHOLE},
    **{name: _by_type(name) for name in _BY_TYPE},
    "callable": lambda work, value: isinstance(value, Function),
    "test": lambda work, value: value in PREDICATES,
}
