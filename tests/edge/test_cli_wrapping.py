"""Lines on a terminal: no word is broken at a line's end, nothing is lost, and pieces make no difference."""

from __future__ import annotations

import random
import textwrap

import pytest

from edge.commands.wrapping import Wrapper, fill, width

TEXT = (
    "The quick brown fox jumps over the lazy dog, and internationalization continues.\n\n    indented code_line(x)\nend"
)


def wrapped(text: str, line: int, pieces: list[str] | None = None) -> str:
    wrapper = Wrapper(lambda: line)
    return "".join(wrapper.push(piece) for piece in pieces or [text]) + wrapper.finish()


@pytest.mark.parametrize("line", [20, 24, 40, 80, 200])
def test_lines_are_those_of_the_standard_library(line: int) -> None:
    """textwrap, which wraps whole texts, agrees on a paragraph of words that fit a line."""
    text = " ".join(word for word in TEXT.split() if len(word) <= line)
    assert wrapped(text, line).split("\n") == textwrap.wrap(text, line, break_on_hyphens=False, break_long_words=False)


@pytest.mark.parametrize("line", [20, 33, 80])
def test_pieces_make_no_difference_and_no_character_is_lost(line: int) -> None:
    draw = random.Random(7)
    for _ in range(50):
        cuts = sorted(draw.sample(range(1, len(TEXT)), 9))
        pieces = [TEXT[start:end] for start, end in zip([0, *cuts], [*cuts, len(TEXT)], strict=True)]
        assert wrapped(TEXT, line, pieces) == wrapped(TEXT, line)
    assert "".join(wrapped(TEXT, line).split()) == "".join(TEXT.split())
    assert max(map(len, wrapped(TEXT, line).split("\n"))) <= max(line, len("internationalization"))


def test_wide_characters_take_two_columns_and_break_anywhere() -> None:
    assert width("a日e\u0301") == 4
    assert wrapped("ab " + "日本語" * 5, 20).split("\n") == ["ab 日本語日本語日本", "語日本語日本語"]


def test_a_word_is_held_back_until_its_end_is_there() -> None:
    wrapper = Wrapper(lambda: 20)
    assert [wrapper.push(piece) for piece in ("one", " t", "wo ", "\n")] == ["", "one", " two", "\n"]
    assert wrapper.finish() == ""


def test_a_narrow_terminal_and_a_pipe_get_the_text_as_it_is() -> None:
    for line in (0, 1, 19):
        assert [Wrapper(lambda line=line: line).push(TEXT)] == [TEXT]  # type: ignore[misc]


def test_a_word_wider_than_a_line_is_left_to_the_terminal() -> None:
    assert wrapped("x" * 50 + " yy", 20) == "x" * 50 + " yy"
    assert wrapped("x" * 58 + " yy", 20) == "x" * 58 + "\nyy"  # 18 columns are taken of the third line


def test_whole_messages_are_filled_with_an_indent() -> None:
    assert fill("/set NAME  one two three four", 20, indent=4).split("\n") == ["/set NAME  one two", "    three four"]
    assert fill("short", 20, indent=4) == "short"
