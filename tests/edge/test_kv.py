"""The ring's bookkeeping against a list that never forgets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.decoder import DecoderSpec
from edge.errors import OptionError, PromptTooLongError
from edge.kv import Cache, KvLayout, plan_layout
from tests.specs import small_spec


def make_spec(*windows: int | None) -> DecoderSpec:
    return small_spec(windows=windows, context=4096)


def make_cache(window: int | None, context: int, *, sliding: bool = True, **options: int) -> Cache:
    layout = plan_layout(make_spec(window), context, **options)
    return Cache(layout, "sliding" if sliding else "error")


class Slots:
    """What a backend would store: the position written to each slot, as the rows are stored."""

    def __init__(self, layout: KvLayout) -> None:
        self.rows = [[-1] * ring.slots for ring in layout.rings]

    def step(self, cache: Cache, count: int, keep: int | None = None) -> list[list[set[int]]]:
        """Feed `count` tokens; returns, a ring, the positions that each new query saw, read from the stored rows."""
        plans = cache.plan(count)
        keep = count if keep is None else keep
        seen = []
        for rows, plan in zip(self.rows, plans, strict=True):
            known = [*rows[: len(plan.held)], *(int(p) for p in plan.positions)]
            seen.append([{known[i] for i in np.flatnonzero(row)} for row in plan.mask()])
            behind = range(len(plan.held), len(plan.held) + count)
            assert plan.follows == (plan.indices.tolist() == list(behind))
            if plan.causal:  # the claim that a backend relies on to leave the mask out
                assert plan.mask()[:, : len(plan.held)].all()
        for rows, plan in zip(self.rows, plans, strict=True):
            for slot, position in list(zip(plan.indices, plan.positions, strict=True))[:keep]:
                rows[slot] = int(position)
        cache.commit(plans, keep)
        return seen


def window_rule(position: int, window: int) -> set[int]:
    return set(range(max(0, position - window + 1), position + 1))


def test_k1_window_counts_the_token_itself_in_prefill_and_decode() -> None:
    cache = make_cache(4, 64, chunk=6)
    slots = Slots(cache.layout)
    seen = [*slots.step(cache, 6)[0], *slots.step(cache, 3)[0], *slots.step(cache, 1)[0]]
    assert seen == [window_rule(position, 4) for position in range(10)]
    assert seen[9] == {6, 7, 8, 9}


@pytest.mark.parametrize("count", [7, 8, 9, 16, 17])
def test_k2_nothing_is_lost_until_the_window_is_passed(count: int) -> None:
    cache = make_cache(None, 8, chunk=4)
    slots = Slots(cache.layout)
    for _ in range(count):
        slots.step(cache, 1)
    held = sorted(position for position in slots.rows[0] if position >= 0)
    assert held == list(range(max(0, count - 8), count))
    assert cache.dropped == max(0, count - 8)


@given(
    window=st.sampled_from([None, 3, 8]),
    chunks=st.lists(st.integers(1, 7), min_size=1, max_size=40),
    chunk=st.integers(1, 7),
)
@settings(max_examples=60, deadline=None)
def test_any_chunking_sees_the_same_positions(window: int | None, chunks: list[int], chunk: int) -> None:
    cache = make_cache(window, 12, chunk=chunk)
    slots = Slots(cache.layout)
    position = 0
    for wanted in chunks:
        for row in slots.step(cache, min(wanted, cache.room(wanted)))[0]:
            assert row == window_rule(position, window or 12)
            position += 1


def test_chunk_does_not_destroy_what_its_first_queries_need() -> None:
    cache = make_cache(None, 8, chunk=8)
    slots = Slots(cache.layout)
    slots.step(cache, 8)
    seen = slots.step(cache, 8)[0]
    assert seen[0] == {1, 2, 3, 4, 5, 6, 7, 8}
    assert seen[7] == set(range(8, 16))


@pytest.mark.parametrize("rewind", range(1, 17))
def test_k4_rewind_on_wrapped_ring_is_exact_or_refused(rewind: int) -> None:
    cache = make_cache(16, 4096, chunk=8)  # 24 slots: eight of slack
    slots = Slots(cache.layout)
    for _ in range(10):
        slots.step(cache, 4)
    kept = cache.rollback(40 - rewind)
    assert kept == (rewind <= 8 + 1)  # the query at 40 - r sees itself and 15 more: 24 slots hold 16…39
    if kept:
        assert slots.step(cache, 1)[0] == [window_rule(40 - rewind, 16)]
    else:
        assert cache.length == 40


def test_k4_rejected_draft_leaves_no_trace() -> None:
    cache = make_cache(None, 8, chunk=4)
    slots = Slots(cache.layout)
    for _ in range(9):
        slots.step(cache, 1)
    before = [list(rows) for rows in slots.rows]
    slots.step(cache, 4, keep=0)
    assert slots.rows == before
    assert cache.length == 9
    assert slots.step(cache, 1)[0] == [window_rule(9, 8)]


def test_rewind_within_an_unwrapped_ring_is_always_exact() -> None:
    cache = make_cache(None, 32, sliding=False)
    slots = Slots(cache.layout)
    slots.step(cache, 20)
    assert cache.rollback(3)
    assert slots.step(cache, 2)[0] == [{0, 1, 2, 3}, {0, 1, 2, 3, 4}]
    assert cache.used == 5


def test_rings_with_different_windows_keep_their_own_slots() -> None:
    layout = plan_layout(make_spec(None, 8, 8, None), 64, chunk=4)
    assert [(ring.slots, ring.window, ring.bounded) for ring in layout.rings] == [(64, 64, False), (12, 8, True)]
    cache = Cache(layout, "error")
    slots = Slots(layout)
    for _ in range(16):
        seen = slots.step(cache, 4)
    assert seen[0][-1] == set(range(64))
    assert seen[1][-1] == window_rule(63, 8)
    assert cache.dropped == 0


def test_n11_sinks_stay_and_move_in_steps_of_64() -> None:
    """Eight slots, two of them sinks: query p sees six tokens. Directly before the oldest, sink 0 would be at p - 7."""
    cache = make_cache(None, 8, chunk=6, sinks=2)
    slots = Slots(cache.layout)
    shifts = []
    position = 0
    while position < 200:
        count = cache.room(5)
        shift = cache.plan(count)[0].shift
        for row in slots.step(cache, count)[0]:
            assert row == {sink for sink in (0, 1) if sink <= position} | window_rule(position, 6)
            assert shift == max(0, position - 7) // 64 * 64
            assert position < 8 or 1 + shift < min(row - {0, 1})  # the sinks stay before the oldest
            shifts.append(shift)
            position += 1
    assert slots.rows[0][:2] == [0, 1]
    assert [shifts.index(step) for step in (0, 64, 128, 192)] == [0, 71, 135, 199]


def test_n11_chunks_end_where_the_sinks_move() -> None:
    cache = make_cache(None, 512, chunk=256, sinks=4)
    counts = []
    while cache.length < 1200:
        count = cache.portion(1200 - cache.length)
        cache.commit(cache.plan(count))
        counts.append(count)
    # 240 a part by even parts of 1200; sinks first move at 64 behind the window of 508 and themselves.
    assert counts == [240, 240, 95, *[64] * 9, 49]


@pytest.mark.parametrize(("prompt", "fits"), [(63, True), (64, True), (65, False), (200, False)])
def test_k12_prompt_that_does_not_fit_names_both_numbers(prompt: int, fits: bool) -> None:
    cache = make_cache(None, 64, sliding=False, chunk=16)
    if fits:
        cache.check(prompt)
        return
    with pytest.raises(PromptTooLongError, match=f"{prompt} tokens.*holds 64"):
        cache.check(prompt)


def test_a_full_cache_has_no_room() -> None:
    cache = make_cache(None, 4, sliding=False)
    slots = Slots(cache.layout)
    slots.step(cache, 4)
    assert cache.room(1) == 0
    with pytest.raises(PromptTooLongError):
        cache.plan(1)


def test_fork_is_independent() -> None:
    cache = make_cache(None, 8)
    slots = Slots(cache.layout)
    slots.step(cache, 3)
    other = cache.fork()
    slots.step(cache, 1)
    assert (cache.length, other.length) == (4, 3)
    assert other.to_json()["held"] == [[0, 1, 2]]


@pytest.mark.parametrize(
    ("context", "options"), [(0, {}), (8, {"sinks": 8}), (8, {"chunk": 0}), (8, {"sequences": 0}), (8, {"sinks": -1})]
)
def test_impossible_layouts_are_refused(context: int, options: dict[str, int]) -> None:
    with pytest.raises(OptionError):
        plan_layout(make_spec(None), context, **options)


def test_sinks_need_the_sliding_policy() -> None:
    with pytest.raises(OptionError, match="sliding"):
        Cache(plan_layout(make_spec(None), 8, sinks=1), "error")
