"""WikiText-2's published text as people would write it."""

from __future__ import annotations

from pathlib import Path

_MARKS = {" @-@ ": "-", " @,@ ": ",", " @.@ ": ".", "<unk>": "unk"}


def read(path: Path) -> str:
    """A file of the data set with the marks of its tokenization undone."""
    text = path.read_text(encoding="utf-8")
    for mark, plain in _MARKS.items():
        text = text.replace(mark, plain)
    return text


def beginning(path: Path, size: int) -> str:
    """At most so many characters of it, whole lines."""
    text = read(path)
    return text[: text.rindex("\n", 0, size) + 1]
