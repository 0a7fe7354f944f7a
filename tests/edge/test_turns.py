"""Whole turns go: which, and that the same messages are sent while a conversation grows."""

from __future__ import annotations

from typing import Any

import pytest

from edge import turns
from edge.options import GenerateOptions
from tests.edge.scripted import OpenScripted, runtime

Message = dict[str, Any]


def talk(*sizes: int, system: int = 10) -> list[Message]:
    """A system prompt, and turns of a question and an answer of so many characters together; the last is asked."""
    found = [{"role": "system", "content": "s" * system}]
    for size in sizes:
        found += [
            {"role": "user", "content": "u" * (size // 2)},
            {"role": "assistant", "content": "a" * (size - size // 2)},
        ]
    return found[:-1]


def count(messages: list[Message]) -> int:
    return sum(len(message["content"]) for message in messages)


@pytest.mark.parametrize(
    ("sizes", "gone"),
    [
        ((20, 20), 0),
        ((20, 20, 30), 0),  # 65 tokens, and 25 for the answer
        ((20, 20, 40, 20), 3),  # 100: 25 too many, so at least 50 go
        ((60, 10, 10, 20), 1),
        ((10, 200), 1),  # the latest stays, however long
        ((200,), 0),
    ],
)
def test_turns_go_by_halves_of_the_context(sizes: tuple[int, ...], gone: int) -> None:
    messages = talk(*sizes)
    assert turns.dropped(messages, count, context=100, total=count(messages), head=10) == gone


def test_what_is_sent_begins_alike_for_many_turns() -> None:
    """In forty turns of ten tokens the beginning changes as often as half the context goes by, and no more."""
    sizes = [10] * 40
    talks = [talk(*sizes[:n]) for n in range(1, 41)]
    cuts = [turns.dropped(some, count, context=100, total=count(some), head=10) for some in talks]
    assert cuts == sorted(cuts)
    assert sorted(set(cuts)) == [0, 5, 10, 15, 20, 25, 30, 35]
    assert all(count(talk(*sizes[cut:n])) <= 75 for n, cut in enumerate(cuts, 1))


def test_sliding_leaves_out_whole_turns_and_pins_the_system_prompt(opened: OpenScripted) -> None:
    pipeline = opened("x" * 60, context=100, chunk=16, policy="sliding")
    short = talk(10, 10)
    whole = pipeline.stream(short)
    list(whole)
    assert whole.result is not None
    assert (whole.result.dropped_turns, whole.result.policy) == (0, "sliding")
    messages = talk(10, 10, 30, 30, 20)
    result = pipeline.complete(messages, GenerateOptions(max_tokens=60))
    sent = [messages[0], *messages[1 + 2 * result.dropped_turns :]]
    assert 0 < result.dropped_turns < 5
    assert result.prompt_tokens == len(pipeline.encode(sent)) <= 75
    assert runtime(pipeline).visible[:13] == pipeline.encode(sent)[:13]  # marks and text, to where the user begins
    assert result.dropped_tokens > 0


def test_other_policies_send_all(opened: OpenScripted) -> None:
    messages = talk(10, 10, 30, 30, 20)
    for policy in ("error", "evict"):
        result = opened("x", context=400, policy=policy).complete(messages)
        assert (result.dropped_turns, result.policy) == (0, policy)
