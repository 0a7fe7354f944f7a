"""The two ways of formatting text, `%` and `str.format`, with marks kept and widths bounded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from string import Formatter
from typing import Any

from edge.template.text import as_whole, cut
from edge.template.values import output, to_text
from edge.template.work import Work

_DIRECTIVE = re.compile(
    r"%(?:\((?P<name>[^()]*)\))?(?P<how>[#0\- +]*(?P<width>\d*)(?:\.(?P<digits>\d*))?[hlL]?(?P<kind>.))", re.DOTALL
)
_LONG_NUMBER = re.compile(r"\d{4}")
_CONVERSIONS: dict[str, Callable[[Any], str]] = {"r": repr, "a": ascii, "s": str}


def format_braces(work: Work, text: str, *args: Any, **kwargs: Any) -> str:
    """str.format"""
    work.make(len(text))
    made: list[str] = []
    numbers = iter(range(len(args)))
    for literal, field, spec, conversion in Formatter().parse(text):
        made.append(as_whole(literal, text))
        if field is None:
            continue
        if "{" in (spec or ""):
            spec = format_braces(work, spec or "", *args, **kwargs)
        value = _field(field, numbers, args, kwargs)
        work.read(value)
        made.append(_formatted(work, value if conversion is None else _CONVERSIONS[conversion](value), spec or ""))
    return output(work, made)


def _field(field: str, numbers: Iterator[int], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    if not field.replace("_", "a").isalnum() and field:
        raise ValueError(f"the field {field!r} is more than a name")
    if field and not field.isdigit():
        return kwargs[field]
    return args[int(field) if field else next(numbers)]


def _formatted(work: Work, value: Any, spec: str) -> str:
    if not spec:
        return to_text(work, value)
    if _LONG_NUMBER.search(spec):
        raise ValueError(f"a width in {spec!r} is too large")
    made = format(value, spec)
    return as_whole(made, to_text(work, value))


def format_percent(work: Work, text: str, given: Any) -> str:
    """The % operator."""
    work.make(len(text))
    rest = iter(given if isinstance(given, tuple) else (given,))
    made: list[str] = []
    done = 0
    for match in _DIRECTIVE.finditer(text):
        made.append(cut(text, done, match.start()))
        done = match.end()
        if match["kind"] == "%":
            made.append(as_whole("%", text))
            continue
        if max(len(match["width"]), len(match["digits"] or "")) > 3:
            raise ValueError(f"a width in {match[0]!r} is too large")
        value = _next(rest) if match["name"] is None else _named(given)[match["name"]]
        directive = "%" + match["how"]
        printed = to_text(work, value)
        made.append(printed if directive == "%s" else as_whole(directive % (value,), printed))
    if not isinstance(given, Mapping) and next(rest, done) is not done:
        raise TypeError("not all arguments converted during string formatting")
    made.append(cut(text, done, None))
    if "%" in made[-1]:
        raise ValueError("incomplete format")
    return output(work, made)


def _named(given: Any) -> Mapping[Any, Any]:
    if not isinstance(given, Mapping):
        raise TypeError("format requires a mapping")
    return given


def _next(rest: Iterator[Any]) -> Any:
    for value in rest:
        return value
    raise TypeError("not enough arguments for format string")
