"""Strings that know which of their characters the template wrote.

`Text` is what the template wrote, in part at least; a plain `str` is what it was given. So an operation that knows
nothing of this loses what the template wrote, and never takes a message's text for the template's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence


class Text(str):
    """A string; `written` holds a byte for each character, 1 where the template wrote it."""

    __slots__ = ("written",)
    written: bytes


def wrote(text: str) -> Text:
    """`text` as the template's own."""
    return _text(text, b"\1" * len(text))


def marks(text: str) -> bytes:
    """For each character 1 if the template wrote it, else 0."""
    return text.written if isinstance(text, Text) else bytes(len(text))


def with_marks(text: str, written: bytes) -> str:
    return _text(text, written) if 1 in written else plain(text)


def _text(text: str, written: bytes) -> Text:
    made = Text(text)
    made.written = written
    return made


def plain(text: str) -> str:
    """The very string, without marks."""
    return str.__str__(text)


def as_whole(made: str, *sources: object) -> str:
    """A string that an operation made of others: the template's if each of them is wholly the template's."""
    texts = [source for source in sources if isinstance(source, str)]
    return wrote(made) if all(isinstance(text, Text) and 0 not in text.written for text in texts) else plain(made)


def concat(parts: Sequence[str]) -> str:
    text = "".join(parts)
    if not any(type(part) is Text for part in parts):
        return text
    return with_marks(text, b"".join(map(marks, parts)))


def join(separator: str, parts: Sequence[str]) -> str:
    text = str.join(separator, parts)
    if not any(type(part) is Text for part in (separator, *parts)):
        return text
    return with_marks(text, marks(separator).join(map(marks, parts)))


def cut(text: str, start: int | None, stop: int | None, step: int | None = None) -> str:
    """text[start:stop:step]"""
    place = slice(start, stop, step)
    piece = str.__getitem__(text, place)
    return with_marks(piece, text.written[place]) if isinstance(text, Text) else piece


def characters(text: str) -> list[str]:
    if not isinstance(text, Text):
        return list(text)
    return [with_marks(letter, text.written[at : at + 1]) for at, letter in enumerate(text)]


def pieces(text: str, found: Sequence[str]) -> list[str]:
    """`found`, pieces of `text` in order, with their marks. Each is the first such piece behind the one before it."""
    if not isinstance(text, Text):
        return list(found)
    made, done = [], 0
    for piece in found:
        start = str.index(text, piece, done)
        done = start + len(piece)
        made.append(cut(text, start, done))
    return made


def split(text: str, separator: str | None, limit: int = -1, *, right: bool = False) -> list[str]:
    """str.split and str.rsplit."""
    found = str.rsplit(text, separator, limit) if right else str.split(text, separator, limit)
    if separator is None or not isinstance(text, Text):
        return pieces(text, found)
    made, done = [], 0
    for piece in found:
        made.append(cut(text, done, done + len(piece)))
        done += len(piece) + len(separator)
    return made


def strip(text: str, characters: str | None = None, *, left: bool = True, right: bool = True) -> str:
    """str.strip, lstrip and rstrip."""
    start = len(text) - len(str.lstrip(text, characters)) if left else 0
    stop = len(str.rstrip(text, characters)) if right else len(text)
    return cut(text, start, max(start, stop))


def replace(text: str, old: str, new: str, count: int = -1) -> str:
    """str.replace"""
    if old:
        return join(new, split(text, old, count))
    letters = characters(text)
    places = len(letters) + 1 if count < 0 else min(count, len(letters) + 1)
    made = [part for letter in letters[: max(places, 0)] for part in (new, letter)]
    return concat([*made, *letters[places:], *([new] if places > len(letters) else ())])


def same_places(made: str, text: str) -> str:
    """What changing the case of `text` has made: as long, it has the same marks."""
    # No letter vanishes in another case; some become several.
    return with_marks(made, marks(text)) if len(made) == len(text) else as_whole(made, text)


def template_runs(text: str) -> Iterator[tuple[int, int]]:
    """(start, end) of each run of characters that the template wrote."""
    for run in re.finditer(rb"\x01+", marks(text)):
        yield run.span()
