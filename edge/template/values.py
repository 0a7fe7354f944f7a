"""The values of a template: those of JSON, what it makes of them, and the few kinds of objects defined here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jinja2 import Undefined
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.utils import missing

from edge.template.text import characters, concat, plain, wrote
from edge.template.work import Work


class Function:
    """What a template can call. `attributes` are what it can look up on it."""

    attributes: Mapping[str, Any] = {}

    def __init__(self, run: Callable[..., Any]) -> None:
        """`run` takes the work first."""
        self._run = run

    def call(self, work: Work, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return self._run(work, *args, **kwargs)


class Namespace:
    """A template's own variables that outlive a loop."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        self.attributes: dict[str, Any] = {}
        for name, value in dict(*args, **attributes).items():
            self.set(name, value)

    def set(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"a chat template may not set {name!r} on a namespace")
        self.attributes[name] = value


def undefined(hint: str | None = None, *, obj: Any = missing, name: Any = None) -> Undefined:
    return Undefined(hint, obj, name)


def to_text(work: Work, value: Any) -> str:
    """What a template prints for a value; numbers and the like are the template's own words."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, (bool, int, float)):
        return wrote(str(value))
    if isinstance(value, Undefined):
        return str(value)
    if isinstance(value, (Function, Namespace, Iterator)):
        return f"<{kind(value)}>"
    work.read(value)
    return plain(str(value))


def items(work: Work, value: Any) -> list[Any]:
    """What walking over a value gives."""
    if hasattr(value, "__len__"):
        work.spend(len(value))
    return characters(value) if isinstance(value, str) else list(value)


def kind(value: Any) -> str:
    return type(value).__name__.lower()


def output(work: Work, parts: Sequence[str]) -> str:
    """The parts of an output as one string."""
    work.make(sum(map(len, parts)))
    return concat(parts)


def assign(target: Any, name: str, value: Any) -> None:
    """`{% set target.name = value %}`"""
    if not isinstance(target, Namespace):
        raise TemplateRuntimeError("cannot assign attribute on non-namespace object")
    target.set(name, value)
