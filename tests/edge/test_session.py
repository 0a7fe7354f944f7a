"""A session: what it believes of its runtime stays true, whatever interrupts it."""

from __future__ import annotations

import itertools
import zlib

import pytest

from edge.errors import InternalError
from edge.kv import Move
from edge.options import GenerateOptions
from edge.pipeline import Pipeline
from edge.runtime import Segment
from edge.session import Session
from tests.edge.interrupts import interrupted_at
from tests.edge.scripted import OpenScripted, runtime


def test_an_interrupted_turning_of_the_sinks_is_done_again(
    opened: OpenScripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sinks are turned, the interrupt comes before that is recorded, and a rewind asks for the angle before."""
    backend = runtime(opened(context=12, chunk=4, policy="sliding", sinks=2))
    turned: list[int] = []

    def turn(move: Move) -> None:
        turned.append(move.shift)
        if move.shift == 128 and len(turned) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(backend, "move", turn)
    session = Session(backend)
    tokens = list(range(139))
    session.feed(tokens)
    assert turned == [64]  # token 138 sees 129 to 138: the sinks could stand 127 further
    with pytest.raises(KeyboardInterrupt):
        session.feed([139])
    assert session.align([*tokens, 139]) == 0  # what the interrupt left is not known
    session.feed([*tokens, 139])
    assert turned == [64, 128, 64, 128]


def test_a_fork_knows_how_far_its_sinks_are_turned(opened: OpenScripted, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = runtime(opened(context=12, chunk=4, policy="sliding", sinks=2, sequences=2))
    turned: list[int] = []
    monkeypatch.setattr(backend, "move", lambda move: turned.append(move.shift))
    session = Session(backend)
    tokens = list(range(139))
    session.feed(tokens)
    fork = session.fork()
    assert fork.align(tokens) == 138
    fork.feed(tokens[138:])
    assert turned == [64, 0]  # they stand right already; a block that both have is copied before it is written
    fork.feed([139])
    assert turned == [64, 0, 128]
    session.feed([139])
    assert turned == [64, 0, 128, 128]


def _memory(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the model's next token follow from all that its latest query saw, so that a wrong slot is a wrong answer."""
    backend = runtime(pipeline)
    answer = backend._answer

    def remembering(segment: Segment) -> int:
        answer(segment)
        backend._slots[0][segment.plan.rings[0].writes] = segment.tokens
        return zlib.crc32(bytes(backend.seen(segment))) % 250

    monkeypatch.setattr(backend, "_answer", remembering)


@pytest.mark.parametrize("policy", ["sliding", "error"])
def test_n29_an_interrupt_at_any_line_of_an_answer_damages_no_later_one(
    policy: str, opened: OpenScripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ring has gone round, or the second prompt rolls back; what comes after is what a cold run gives."""
    context = 8 if policy == "sliding" else 64
    pipeline = opened(context=context, chunk=4, policy=policy)
    _memory(pipeline, monkeypatch)
    first, second = list(range(10)), [*range(7), 77, 78]

    def ids(prompt: list[int]) -> list[int]:
        return [event.id for event in pipeline.tokens(prompt, GenerateOptions(max_tokens=2))]

    expected = []
    for prompt in (first, second, [*second, 81, 82]):
        pipeline.reset()
        expected.append(ids(prompt))
    for line in itertools.count(1):
        pipeline.reset()
        assert ids(first) == expected[0]
        more = interrupted_at(line, lambda: ids(second))
        assert ids([*second, 81, 82]) == expected[2], line
        assert ids(second) == expected[1], line
        if not more:
            break
    assert line > 100


def test_n29_an_interrupted_reset_begins_anew(opened: OpenScripted, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = opened(context=12, chunk=4, policy="sliding")
    _memory(pipeline, monkeypatch)

    def ids() -> list[int]:
        return [event.id for event in pipeline.tokens(list(range(20)), GenerateOptions(max_tokens=3))]

    expected, line = ids(), 1
    while interrupted_at(line, pipeline.reset):
        assert ids() == expected
        line += 1
    assert line > 20


def test_n29_a_session_left_unknown_says_so_until_it_is_aligned(
    opened: OpenScripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = runtime(opened(context=12, chunk=4, policy="sliding", sequences=2))
    session = Session(backend)
    session.feed(range(20))
    commit = session.cache.commit

    def interrupt(count: int) -> None:
        commit(count)
        raise KeyboardInterrupt

    monkeypatch.setattr(session.cache, "commit", interrupt)
    with pytest.raises(KeyboardInterrupt):
        session.feed([20, 21])
    monkeypatch.setattr(session.cache, "commit", commit)
    for use in (lambda: session.feed([20]), lambda: session.step([20]), session.fork):
        with pytest.raises(InternalError, match="an interrupt came while this sequence changed"):
            use()
    assert session.align(range(20)) == 0
    session.feed(range(20))
    assert session.tokens == list(range(20))
