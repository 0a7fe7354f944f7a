"""Values in text that a model wrote: JSON, or the same as a Python literal (True, None, single quotes, tuples)."""

from __future__ import annotations

import json
import re
from typing import Any

_DECODER = json.JSONDecoder()
_BLANK = re.compile(r"\s*")
_WORD = re.compile(r"(?:True|False|None|true|false|null)\b")
_WORDS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.])")
_STRING = re.compile(r"""'((?:[^'\\\n]|\\.)*)'|"((?:[^"\\\n]|\\.)*)\"""")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{2})|(.))")
_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "/": "/", "'": "'", '"': '"', "\\": "\\"}
_CLOSING = {"[": "]", "(": ")", "{": "}"}


def read_value(text: str, start: int) -> tuple[Any, int]:
    """The value at that place, and where it ends. Raises ValueError or RecursionError where there is none."""
    try:
        return _DECODER.raw_decode(text, start)
    except ValueError:
        return _read(text, start)


def _read(text: str, start: int) -> tuple[Any, int]:
    opening = text[start : start + 1]
    if opening in _CLOSING:
        return _read_items(text, start + 1, opening)
    if found := _STRING.match(text, start):
        return _unescape(found[1] if found[1] is not None else found[2]), found.end()
    if found := _WORD.match(text, start):
        return _WORDS[found[0]], found.end()
    if found := _NUMBER.match(text, start):
        return (int if found[0].lstrip("+-").isdigit() else float)(found[0]), found.end()
    raise ValueError(f"no value at {start}")


def _read_items(text: str, place: int, opening: str) -> tuple[Any, int]:
    """The rest of a list, tuple or dict."""
    made: list[Any] = []
    while (place := _skip(text, place)) < len(text) and text[place] != _CLOSING[opening]:
        value, place = _read(text, place)
        if opening == "{":
            place = _skip(text, place)
            if not isinstance(value, str) or text[place : place + 1] != ":":
                raise ValueError(f"no key at {place}")
            key = value
            value, place = _read(text, _skip(text, place + 1))
            value = (key, value)
        made.append(value)
        place = _skip(text, place)
        if text[place : place + 1] == ",":
            place += 1
        elif text[place : place + 1] != _CLOSING[opening]:
            raise ValueError(f"no comma at {place}")
    if place >= len(text):
        raise ValueError("no end")
    return dict(made) if opening == "{" else made, place + 1


def _skip(text: str, place: int) -> int:
    found = _BLANK.match(text, place)
    return found.end() if found else place


def _unescape(text: str) -> str:
    """Raises ValueError for half of a surrogate pair."""

    def replace(found: re.Match[str]) -> str:
        digits = found[1] or found[2] or found[3]
        return chr(int(digits, 16)) if digits else _LETTERS.get(found[4], found[0])

    plain = _ESCAPE.sub(replace, text)
    return plain.encode("utf-16", "surrogatepass").decode("utf-16")
