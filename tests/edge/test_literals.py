"""Values as models write them, against Python's own printing and reading."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.literals import read_value

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
VALUES = st.recursive(
    SCALARS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(VALUES, st.sampled_from(["", " ", "x", "}", ",", "'"]))
def test_n6_what_python_prints_is_read_back(value: Any, behind: str) -> None:
    text = repr([value])
    assert read_value(text + behind, 0) == ([value], len(text))
    dumped = json.dumps([value], ensure_ascii=False)
    assert read_value(f"<{dumped}{behind}", 1) == ([value], len(dumped) + 1)


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from("[]{}(),:'\"\\ 1.-eTrueNone\nx"), max_size=12))
def test_n6_any_text_is_a_value_of_python_or_refused(text: str) -> None:
    try:
        value, end = read_value(text, 0)
    except ValueError:
        return
    if text.startswith("("):  # in Python a pair of brackets around one value is no tuple
        return
    words = text[:end].replace("true", "True").replace("false", "False").replace("null", "None")
    try:
        expected = ast.literal_eval(words)
    except (ValueError, SyntaxError):
        assert json.loads(text[:end]) == value  # a number such as 1e5 or 01 is one language's only
        return
    assert json.dumps(expected) == json.dumps(value) or "(" in words


@pytest.mark.parametrize("text", ["", "[", "{'a'}", "{'a': }", "[1 2]", "'a", "x", "{1: 2}", "(1]"])
def test_n6_what_is_no_value(text: str) -> None:
    with pytest.raises(ValueError, match=r"^no "):
        read_value(text, 0)
