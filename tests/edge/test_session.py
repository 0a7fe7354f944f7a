"""A session: what it believes of its runtime stays true, whatever interrupts it."""

from __future__ import annotations

import pytest

from edge.session import Session
from tests.edge.scripted import OpenScripted, runtime


def test_an_interrupted_turning_of_the_sinks_is_done_again(
    opened: OpenScripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sinks are turned, the interrupt comes before that is recorded, and a rewind asks for the angle before."""
    backend = runtime(opened(context=12, chunk=4, policy="sliding", sinks=2))
    turned: list[int] = []

    def turn(sequence: int, ring: int, shift: int) -> None:
        turned.append(shift)
        if shift == 9:
            raise KeyboardInterrupt

    monkeypatch.setattr(backend, "rotate_sinks", turn)
    session = Session(backend, "sliding")
    tokens = list(range(20))
    session.feed(tokens)
    assert turned == list(range(1, 9))  # token 19 sees 10 to 19, two sinks before it: from 0 and 1 to 8 and 9
    with pytest.raises(KeyboardInterrupt):
        session.feed([20])
    assert session.align(tokens) == 19
    session.feed(tokens[19:])
    assert turned == [*range(1, 9), 9, 8]


def test_a_fork_knows_how_far_its_sinks_are_turned(opened: OpenScripted, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = runtime(opened(context=12, chunk=4, policy="sliding", sinks=2, sequences=2))
    turned: list[tuple[int, int]] = []
    monkeypatch.setattr(backend, "rotate_sinks", lambda sequence, ring, shift: turned.append((sequence, shift)))
    session = Session(backend, "sliding")
    tokens = list(range(13))
    session.feed(tokens)
    fork = session.fork(1)
    assert fork.align(tokens) == 12
    fork.feed(tokens[12:])
    assert turned == [(0, 1)]  # they stand right already
    fork.feed([13])
    assert turned == [(0, 1), (1, 2)]


def test_newly_dropped_counts_over_the_chunks_of_one_feed(opened: OpenScripted) -> None:
    session = Session(runtime(opened(context=16, chunk=4, policy="sliding")), "sliding")
    found = []
    for count in (10, 10, 1, 7):
        session.feed(range(count))
        found.append((session.newly_dropped, session.dropped))
    assert found == [(0, 0), (4, 4), (1, 5), (7, 12)]
    session.step([1, 2])
    assert session.newly_dropped == 9
