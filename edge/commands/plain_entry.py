"""Lines from a terminal that takes no control sequences, as they come."""

from __future__ import annotations

import sys

from edge import texts
from edge.errors import OptionError

PROMPT = ">>> "
CONTINUED = "... "
QUOTES = '"""'


def unquoted(text: str) -> str:
    """The text between triple quotes, if it begins and ends with them."""
    inner = text.strip()
    if len(inner) >= 2 * len(QUOTES) and inner.startswith(QUOTES) and inner.endswith(QUOTES):
        return " " + inner[len(QUOTES) : -len(QUOTES)]  # a space before it: what is quoted is no command
    return text


def is_open(text: str) -> bool:
    """Whether triple quotes are still to be closed."""
    inner = text.strip()
    return inner.startswith(QUOTES) and (len(inner) < 2 * len(QUOTES) or not inner.endswith(QUOTES))


class PlainEntry:
    def read(self) -> str:
        """The next line, or the lines between triple quotes. Raises EOFError at the end, OptionError for no text."""
        text = self._line(PROMPT)
        while is_open(text):
            text += self._line(CONTINUED)
        return unquoted(text.removesuffix("\n"))

    def _line(self, prompt: str) -> str:
        print(prompt, end="", file=sys.stderr, flush=True)
        line = sys.stdin.buffer.readline()
        if not line:
            raise EOFError
        try:
            return texts.decode_stdin(line, sys.stdin.encoding)
        except UnicodeError as error:
            raise OptionError(f"what was entered is no text in the encoding {sys.stdin.encoding}") from error
