"""Text that grows on a terminal, in lines whose ends break no word."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable
from typing import IO

_NARROWEST = 20  # in narrower terminals, lines of whole words would be mostly empty
_TAB = 8


def columns(stream: IO[str]) -> int:
    """The columns of the terminal that a stream writes to; 0 where it is none, or does not say."""
    try:
        return os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0
    except (OSError, ValueError):  # ValueError: a stream without a descriptor
        return 0


def width(text: str) -> int:
    """The columns that a text takes: two for a wide character of East Asia, none for a mark on another one."""
    return sum(_width(character) for character in text)


def _width(character: str) -> int:
    if character.isascii():
        return 1
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


class Wrapper:
    """Turns a text, given in pieces, into lines of whole words; a word is held back until its end is there.

    Spaces at which a line ends are left out. A word wider than a line is broken by the terminal, and so is everything
    where `columns` (asked before each word, since a window's size changes) is below 20.
    """

    def __init__(self, columns: Callable[[], int]) -> None:
        self._columns = columns
        self._column = 0
        self._spaces = ""
        self._word = ""
        self._begun = False  # whether the word's beginning, a line wide, is shown already

    def push(self, piece: str) -> str:
        """What may be shown now."""
        if self._columns() < _NARROWEST:
            return self.finish() + piece
        shown = []
        for character in piece:
            if character == "\n":
                shown += [self._end_word(), "\n"]
                self._column, self._spaces = 0, ""
            elif character in " \t":
                shown.append(self._end_word())
                self._spaces += character
            else:
                wide = _width(character) == 2  # a line may end before and after each of them
                shown.append(self._end_word() if wide else "")
                self._word += character
                if wide or len(self._word) >= self._columns():
                    shown.append(self._end_word())
                    self._begun = not wide
        return "".join(shown)

    def finish(self) -> str:
        """What was held back; the text goes on in the same line."""
        spaces_alone = not self._word
        shown = self._end_word()
        if spaces_alone and self._spaces:
            shown, self._spaces = self._spaces, ""
            self._column += width(shown)
        return shown

    def _end_word(self) -> str:
        begun, self._begun = self._begun, False
        if not self._word:
            return ""
        line, taken = self._columns(), width(self._word)
        between = sum(_TAB if space == "\t" else 1 for space in self._spaces)
        breaks = not begun and self._column > 0 and self._column + between + taken > line >= _NARROWEST
        shown = ("\n" if breaks else self._spaces) + self._word
        self._column = taken if breaks else self._column + between + taken
        if line and self._column > line:  # the terminal has gone on in the next line by itself
            self._column %= line
        self._spaces = self._word = ""
        return shown


def fill(text: str, line: int, *, indent: int = 0) -> str:
    """Whole lines of whole words; lines after the first of each paragraph are indented."""
    if line < _NARROWEST:
        return text
    return "\n".join(_fill(paragraph, line, " " * indent) for paragraph in text.split("\n"))


def _fill(paragraph: str, line: int, indent: str) -> str:
    wrapper = Wrapper(lambda: line)
    lines = (wrapper.push(paragraph) + wrapper.finish()).split("\n")
    if not indent or len(lines) == 1:
        return "\n".join(lines)
    rest = paragraph[len(lines[0]) :].lstrip()
    below = Wrapper(lambda: line - len(indent))
    return "\n".join([lines[0], *(indent + item for item in (below.push(rest) + below.finish()).split("\n"))])
