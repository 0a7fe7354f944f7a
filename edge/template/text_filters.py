"""The filters of templates that make text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from jinja2.exceptions import FilterArgumentError

from edge.template.strings import METHODS
from edge.template.text import as_whole, concat, cut, join, plain, same_places
from edge.template.values import to_text
from edge.template.work import Work

_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "'": "&#39;", '"': "&#34;"})
_WORD_STARTS = re.compile(r"([-\s({\[<]+)")


def of_string(name: str) -> Callable[..., Any]:
    """A filter that is a method of strings."""

    def run(work: Work, value: Any, *args: Any) -> Any:
        return METHODS[name](work, to_text(work, value), *args)

    return run


def center(work: Work, value: Any, width: int = 80) -> str:
    made: str = METHODS["center"](work, to_text(work, value), width)
    return made


def escaped(work: Work, value: Any) -> str:
    text = to_text(work, value)
    work.make(len(text) * 5)
    return as_whole(plain(text).translate(_ESCAPES), text)


def titled(work: Work, value: Any) -> str:
    text = to_text(work, value)
    work.make(len(text) * 4)
    words = _WORD_STARTS.split(text)
    return same_places("".join(word[0].upper() + word[1:].lower() for word in words if word), text)


def replaced(work: Work, value: Any, old: Any, new: Any, count: int | None = None) -> str:
    texts = [to_text(work, each) for each in (value, old, new)]
    made: str = METHODS["replace"](work, *texts, -1 if count is None else count)
    return made


def truncated(
    work: Work, value: str, length: int = 255, killwords: bool = False, end: str = "...", leeway: int = 5
) -> str:
    if length < len(end) or leeway < 0:
        raise FilterArgumentError(f"expected length >= {len(end)} and leeway >= 0, got {length} and {leeway}")
    if len(value) <= length + leeway:
        return value
    work.make(length)
    kept = cut(value, 0, length - len(end))
    if not killwords and " " in kept:
        kept = cut(kept, 0, kept.rindex(" "))
    return concat((kept, end))


def indented(work: Work, value: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    if isinstance(width, int):
        work.make(width)
    space = width if isinstance(width, str) else " " * width
    # The added newline keeps an empty last line.
    lines: list[str] = METHODS["splitlines"](work, concat((value, "\n")))
    work.make((len(space) + 1) * len(lines))
    made = [line if number == 0 or not (line or blank) else concat((space, line)) for number, line in enumerate(lines)]
    text = join("\n", made)
    return concat((space, text)) if first else text


def to_json(
    work: Work,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """json.dumps, as transformers has it: nothing is escaped for HTML."""
    count, depth = work.measure(value)
    space = len(indent) if isinstance(indent, str) else max(indent or 0, 0)
    work.make(count * (depth * space + sum(map(len, separators or ()))))
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    work.make(len(text))
    return text
