"""The methods of strings, with the marks of what the template wrote kept, and paid for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edge.template import text as texts
from edge.template.formatting import format_braces
from edge.template.text import as_whole, cut, marks, same_places, with_marks
from edge.template.values import items
from edge.template.work import Work


def of_python(name: str) -> Callable[..., Any]:
    """A method whose result is no text, or is the same for texts whoever wrote them."""
    method = getattr(str, name)

    def run(work: Work, text: str, *args: Any) -> Any:
        for arg in args:
            work.read(arg)
        return method(text, *args)

    return run


def other_case(name: str) -> Callable[..., str]:
    method: Callable[[str], str] = getattr(str, name)

    def run(work: Work, text: str) -> str:
        work.make(len(text))
        return same_places(method(text), text)

    return run


def filled(name: str) -> Callable[..., str]:
    """center, ljust, rjust and zfill."""
    method = getattr(str, name)

    def run(work: Work, text: str, width: int, *fill: str) -> str:
        work.make(max(width, len(text)))
        made: str = method(text, width, *fill)
        missing = len(made) - len(text)
        if not missing or name == "zfill":
            return as_whole(made, text)
        before = {"ljust": 0, "rjust": missing}.get(name, missing // 2 + (missing & width & 1))
        mark = marks(fill[0]) if fill else b"\0"
        return with_marks(made, mark * before + marks(text) + mark * (missing - before))

    return run


def stripped(*, left: bool, right: bool) -> Callable[..., str]:
    def run(work: Work, text: str, characters: str | None = None) -> str:
        work.make(len(text))
        return texts.strip(text, characters, left=left, right=right)

    return run


def split(work: Work, text: str, sep: str | None = None, maxsplit: int = -1) -> list[str]:
    _pay_pieces(work, text, sep, maxsplit)
    return texts.split(text, sep, maxsplit)


def rsplit(work: Work, text: str, sep: str | None = None, maxsplit: int = -1) -> list[str]:
    _pay_pieces(work, text, sep, maxsplit)
    return texts.split(text, sep, maxsplit, right=True)


def _pay_pieces(work: Work, text: str, sep: str | None, most: int) -> None:
    count = str.count(text, sep) if sep else len(text) >> 1
    work.make(len(text))
    work.spend(count if most < 0 else min(count, most))


def splitlines(work: Work, text: str, keepends: bool = False) -> list[str]:
    work.spend(len(text) >> 1)
    made, done = [], 0
    for line, whole in zip(str.splitlines(text), str.splitlines(text, keepends=True), strict=True):
        made.append(cut(text, done, done + len(whole if keepends else line)))
        done += len(whole)
    return made


def partition(work: Work, text: str, sep: str) -> tuple[str, str, str]:
    return _parted(work, text, str.find(text, sep), sep)


def rpartition(work: Work, text: str, sep: str) -> tuple[str, str, str]:
    start = str.rfind(text, sep)
    return ("", "", text) if start < 0 and sep else _parted(work, text, start, sep)


def _parted(work: Work, text: str, start: int, sep: str) -> tuple[str, str, str]:
    if not sep:
        raise ValueError("empty separator")
    work.make(len(text))
    if start < 0:
        return text, "", ""
    return cut(text, 0, start), cut(text, start, start + len(sep)), cut(text, start + len(sep), None)


def replace(work: Work, text: str, old: str, new: str, count: int = -1) -> str:
    places = str.count(text, old)
    if count >= 0:
        places = min(places, count)
    work.spend(1 if old else places)
    work.make(len(text) + places * len(new))
    return texts.replace(text, old, new, count)


def removeprefix(work: Work, text: str, prefix: str) -> str:
    work.make(len(text))
    return cut(text, len(prefix), None) if prefix and str.startswith(text, prefix) else text


def removesuffix(work: Work, text: str, suffix: str) -> str:
    work.make(len(text))
    return cut(text, 0, len(text) - len(suffix)) if suffix and str.endswith(text, suffix) else text


def join(work: Work, text: str, parts: Any) -> str:
    found = items(work, parts)
    for number, part in enumerate(found):
        if not isinstance(part, str):
            raise TypeError(f"sequence item {number}: expected str instance, {type(part).__name__} found")
    work.make(sum(map(len, found)) + len(text) * len(found))
    return texts.join(text, found)


def expandtabs(work: Work, text: str, tabsize: int = 8) -> str:
    work.make(len(text) + str.count(text, "\t") * max(tabsize, 1))
    return as_whole(str.expandtabs(text, tabsize), text)


_READ = (
    "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier",
    "islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper", "rfind", "rindex", "startswith",
)  # fmt: skip
_CASES = ("capitalize", "casefold", "lower", "swapcase", "title", "upper")
METHODS: dict[str, Callable[..., Any]] = {
    **{name: of_python(name) for name in _READ},
    **{name: other_case(name) for name in _CASES},
    **{name: filled(name) for name in ("center", "ljust", "rjust", "zfill")},
    "strip": stripped(left=True, right=True),
    "lstrip": stripped(left=True, right=False),
    "rstrip": stripped(left=False, right=True),
    "split": split,
    "rsplit": rsplit,
    "splitlines": splitlines,
    "partition": partition,
    "rpartition": rpartition,
    "replace": replace,
    "removeprefix": removeprefix,
    "removesuffix": removesuffix,
    "join": join,
    "expandtabs": expandtabs,
    "format": format_braces,
}
