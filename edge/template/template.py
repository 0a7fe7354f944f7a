"""A template: source text in, and text that knows what the template wrote out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import SandboxedEnvironment

from edge.template.expressions import Scope
from edge.template.statements import Statements
from edge.template.text import wrote
from edge.template.values import Function, Namespace, output
from edge.template.work import Work

_LONGEST = 1_000_000  # characters of a source
_RANGE = 100_000  # as jinja2's sandbox has it
_WIDE = re.compile(r"%[^a-zA-Z%]*\d{3}")


class Template:
    """A compiled template. `tree` is its syntax tree."""

    def __init__(self, source: str) -> None:
        """Raises TemplateSyntaxError for what is no template, RecursionError for one that is nested too deeply."""
        if len(source) > _LONGEST:
            raise TemplateError(f"it has {len(source)} characters; at most {_LONGEST} are allowed")
        self.tree: nodes.Template = _parser().parse(source)
        self._body = Statements().block(self.tree.body)

    def render(self, variables: Mapping[str, Any], work: Work) -> str:
        """Raises LimitError or CancelledError of `work`; besides, as any program, whatever it may."""
        out: list[str] = []
        self._body(Scope(work, {**GLOBALS, **variables}).inner(), out)
        return output(work, out)


class _Generation(Extension):
    """The tag around an assistant's words, of use in training only: its body is rendered as it stands."""

    tags = {"generation"}  # noqa: RUF012 (the base class declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


@cache
def _parser() -> SandboxedEnvironment:
    return SandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])


def _range(work: Work, *bounds: int) -> range:
    made = range(*bounds)
    if len(made) > _RANGE:
        raise OverflowError(f"Range too big. The sandbox blocks ranges larger than MAX_RANGE ({_RANGE}).")
    return made


def _dict(work: Work, *args: Any, **kwargs: Any) -> dict[Any, Any]:
    made = dict(*args, **kwargs)
    work.spend(len(made))
    return made


def _refuse(work: Work, message: str) -> NoReturn:
    raise TemplateError(message)


def _now(work: Work, form: str) -> str:
    if _WIDE.search(form) or len(form) > 1000:
        raise ValueError("a date's form is too long")
    return wrote(datetime.now().strftime(form))


class _Cycler(Function):
    """What gives its values in turn."""

    def __init__(self, work: Work, *values: Any) -> None:
        if not values:
            raise RuntimeError("at least one item has to be provided")
        self._values, self._place = values, 0

    @property
    def attributes(self) -> Mapping[str, Any]:  # type: ignore[override]
        return {
            "current": self._values[self._place],
            "next": Function(self._next),
            "reset": Function(self._reset),
        }

    def _next(self, work: Work) -> Any:
        value = self._values[self._place]
        self._place = (self._place + 1) % len(self._values)
        return value

    def _reset(self, work: Work) -> None:
        self._place = 0


def _joiner(work: Work, sep: str = ", ") -> Function:
    """What gives nothing at its first call and the separator later."""
    texts = iter(("",))
    return Function(lambda work: next(texts, sep))


def _namespace(work: Work, *args: Any, **kwargs: Any) -> Namespace:
    return Namespace(*args, **kwargs)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "cycler": _Cycler,
    "dict": _dict,
    "joiner": _joiner,
    "namespace": _namespace,
    "raise_exception": _refuse,
    "range": _range,
    "strftime_now": _now,
}
GLOBALS: Mapping[str, Any] = {name: Function(run) for name, run in _FUNCTIONS.items()}
