"""Text from outside: one rule by which bytes become text, for files, stdin, the command line and the system's files.

Text is UTF-8. A byte order mark at its start is no part of it, and one of UTF-16 says that the text is UTF-16, as
Windows PowerShell writes what is redirected into a file. Nothing else is guessed: other bytes are an error, with their
place. Two kinds of text are not ours to refuse: stdin may be in the encoding of its terminal, and what the system says
of itself (`/proc`) may hold names of any bytes.
"""

from __future__ import annotations

import codecs
import json
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


def decode(data: bytes) -> str:
    """The text that the bytes are. Raises UnicodeDecodeError, which is a ValueError, where they are none."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return data[len(mark) :].decode(encoding)
    return data.decode("utf-8")


def read(path: Path) -> str:
    """The text of a file, its lines ended by a newline each. Raises OSError or UnicodeDecodeError."""
    return decode(path.read_bytes()).replace("\r\n", "\n").replace("\r", "\n")


def parse_json(text: bytes | str, *, unique: bool = False) -> Any:
    """The value of a JSON text. Raises ValueError for whatever is none, too deep a nesting included.

    With `unique` a key that stands twice in one object is an error too: readers disagree on which of the two counts.
    """
    try:
        return json.loads(
            decode(text) if isinstance(text, bytes) else text, object_pairs_hook=_once if unique else None
        )
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these members. Raises ValueError for a key that stands twice."""
    table = dict(pairs)
    if len(table) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} stands there twice")
    return table


def read_json(path: Path) -> Any:
    """The value in a JSON file. Raises OSError, or ValueError where it is no JSON."""
    return parse_json(path.read_bytes())


def read_toml(path: Path) -> dict[str, Any]:
    """The table in a TOML file. Raises OSError, or ValueError where it is no TOML."""
    try:
        return tomllib.loads(read(path))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def decode_stdin(data: bytes, encoding: str) -> str:
    """What came on stdin: text by the rule, or else in the encoding that the stream itself has.

    Text in a code page is hardly ever valid UTF-8 by chance. Raises UnicodeDecodeError where it is neither.
    """
    try:
        return decode(data)
    except UnicodeDecodeError:
        if codecs.lookup(encoding).name == "utf-8":
            raise
        return data.decode(encoding)


def decode_word(word: str) -> str:
    """A word of the command line as the UTF-8 that it is, under a locale that took it for something else (LC_ALL=C).

    What is no UTF-8 stays as it is, halves of surrogate pairs among it: it is refused where it is used as a text.
    """
    if word.isascii() or sys.platform == "win32":  # Windows passes arguments as UTF-16, independent of the locale
        return word
    try:
        return os.fsencode(word).decode("utf-8")
    except UnicodeError:
        return word


def read_system(path: Path) -> str:
    """What the system or another program notes in a file; bytes that are no UTF-8, in names, become U+FFFD."""
    return path.read_bytes().decode("utf-8", errors="replace")
