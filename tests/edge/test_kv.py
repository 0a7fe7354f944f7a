"""The bookkeeping of blocks against lists that never forget."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from edge.decoder import DecoderSpec
from edge.errors import OptionError, PoolFullError, PromptTooLongError
from edge.kv import BLOCK, Cache, KvLayout, Move, Pools, plan_layout
from edge.kv.blocks import BlockPool
from tests.specs import small_spec


def make_spec(*windows: int | None) -> DecoderSpec:
    return small_spec(windows=windows, context=4096)


def make_cache(window: int | None, context: int, *, sliding: bool = True, **options: int) -> Cache:
    return Pools(plan_layout(make_spec(window), context, policy="sliding" if sliding else "error", **options)).open()


def window_rule(position: int, window: int, sinks: int = 0) -> set[int]:
    return set(range(max(0, position - window + 1), position + 1)) | set(range(min(sinks, position + 1)))


class Slots:
    """What a backend would keep: (token, how far its key is rotated on) in each slot, written as `Batch` says."""

    def __init__(self, layout: KvLayout) -> None:
        self.rows: list[dict[int, tuple[Any, int]]] = [{} for _ in layout.rings]

    def move(self, moves: Iterable[Move]) -> None:
        for move in moves:
            rows = self.rows[move.ring]
            for i in range(move.count):
                token, shift = rows[move.source + i]
                assert not (move.shift and shift), "rotated from a rotated copy"
                rows[move.target + i] = (token, shift + move.shift)

    def step(self, cache: Cache, tokens: list[Any], keep: int | None = None) -> list[list[dict[int, Any]]]:
        """Feed tokens; returns, a ring, what each new query saw: position → (token, rotation), read from the slots."""
        self.move(cache.prepare(len(tokens)))
        plan = cache.plan(len(tokens))
        seen = []
        for rows, ring in zip(self.rows, plan.rings, strict=True):
            before = dict(rows)
            held, slots = ring.unrolled()
            assert (np.diff(held) > 0).all()
            assert ((held - slots) % 16 == 0).all()  # lines of 16 slots are lines of 16 positions
            assert (ring.runs[:, 2] > 0).all()
            for slot, token in zip(ring.writes.tolist(), tokens, strict=True):
                rows[slot] = (token, 0)
            new = set(ring.writes.tolist())
            assert all(before[slot] == rows[slot] for slot in slots.tolist() if slot not in new)
            mask = ring.mask(held)
            seen.append([{int(held[i]): rows[int(slots[i])] for i in np.flatnonzero(row)} for row in mask])
        cache.commit(len(tokens) if keep is None else keep)
        return seen

    def positions(self, cache: Cache, count: int) -> list[set[int]]:
        """Feed positions as tokens; the positions that each query of the first ring saw."""
        start = cache.length
        seen = self.step(cache, list(range(start, start + count)))[0]
        assert all(position == token for row in seen for position, (token, _) in row.items())
        return [set(row) for row in seen]


def test_k1_window_counts_the_token_itself_in_prefill_and_decode() -> None:
    cache = make_cache(4, 64, chunk=6)
    slots = Slots(cache.layout)
    seen = [*slots.positions(cache, 6), *slots.positions(cache, 3), *slots.positions(cache, 1)]
    assert seen == [window_rule(position, 4) for position in range(10)]
    assert seen[9] == {6, 7, 8, 9}


@pytest.mark.parametrize("count", [7, 8, 9, 16, 17])
def test_k2_nothing_is_lost_until_the_window_is_passed(count: int) -> None:
    cache = make_cache(None, 8, chunk=4)
    slots = Slots(cache.layout)
    seen = [slots.positions(cache, 1)[0] for _ in range(count)]
    assert seen[-1] == set(range(max(0, count - 8), count))
    assert cache.dropped == max(0, count - 8)


@pytest.mark.parametrize("window", [65, 100, 128, 129, 190])
@pytest.mark.parametrize("chunk", [1, 7, 64, 65])
def test_a_ring_never_takes_more_than_its_blocks(window: int, chunk: int) -> None:
    """And holds what every query of a chunk sees, wherever in a block it begins."""
    cache = make_cache(None, window, chunk=chunk)
    slots = Slots(cache.layout)
    (ring,) = cache.layout.rings
    assert (ring.blocks - 1) * BLOCK < window + chunk + BLOCK
    while cache.length < 4 * window:
        start = cache.length
        found = slots.positions(cache, cache.room(1 + start % chunk))
        assert found == [window_rule(start + i, window) for i in range(len(found))]
        assert len(cache.rings[0].blocks()) <= ring.blocks


@pytest.mark.parametrize("rewind", range(1, 140, 3))
def test_k4_rewind_on_a_ring_that_went_round_is_exact_or_refused(rewind: int) -> None:
    cache = make_cache(16, 4096, chunk=8)  # two blocks: after 300 tokens they hold those from 192 on
    slots = Slots(cache.layout)
    while cache.length < 300:
        slots.positions(cache, 4)
    kept = cache.rollback(300 - rewind)
    assert kept == (300 - rewind - 15 >= 256 - BLOCK)
    if kept:
        assert slots.positions(cache, 1) == [window_rule(300 - rewind, 16)]
    else:
        assert cache.length == 300


def test_k4_rejected_draft_leaves_no_trace() -> None:
    cache = make_cache(None, 80, chunk=4)
    slots = Slots(cache.layout)
    while cache.length < 207:
        slots.positions(cache, 1)
    held, where = cache.rings[0].plan(cache.length, 0).unrolled()
    before = {int(p): slots.rows[0][int(slot)] for p, slot in zip(held, where, strict=True)}
    slots.step(cache, ["draft"] * 4, keep=0)
    held, where = cache.rings[0].plan(cache.length, 0).unrolled()
    assert {int(p): slots.rows[0][int(slot)] for p, slot in zip(held, where, strict=True)} == before
    assert cache.length == 207
    assert slots.positions(cache, 1) == [window_rule(207, 80)]


def test_rings_with_different_windows_keep_their_own_blocks() -> None:
    layout = plan_layout(make_spec(None, 8, 8, None), 640, chunk=4)
    assert [(ring.slots, ring.window, ring.bounded) for ring in layout.rings] == [(640, 640, False), (128, 8, True)]
    cache = Pools(layout).open()
    slots = Slots(layout)
    for _ in range(160):
        seen = slots.step(cache, list(range(cache.length, cache.length + 4)))
    assert set(seen[0][-1]) == set(range(640))
    assert set(seen[1][-1]) == window_rule(639, 8)
    assert cache.dropped == 0
    assert cache.used == 640 + 128


@pytest.mark.parametrize("sinks", [2, 64, 65])
def test_n11_sinks_stay_and_move_in_steps_of_64(sinks: int) -> None:
    """Query p sees the sinks and six tokens. Directly before the oldest, sink 0 would be at p - 5 - sinks."""
    context = sinks + 6
    cache = make_cache(None, context, chunk=6, sinks=sinks)
    slots = Slots(cache.layout)
    while cache.length < 500:
        start, count = cache.length, cache.room(5)
        for i, row in enumerate(slots.step(cache, list(range(start, start + count)))[0]):
            position = start + i
            assert set(row) == window_rule(position, 6, sinks)
            shift = max(0, position + 1 - context) // 64 * 64
            assert {turned for sink, (_, turned) in row.items() if sink < min(sinks, position - 5)} <= {shift}
            assert {turned for other, (_, turned) in row.items() if other >= sinks} <= {0}
            assert not shift or sinks - 1 + shift < position - 5  # the sinks stay before the oldest


def turned(row: dict[int, tuple[int, int]], sinks: int) -> list[tuple[int, int]]:
    """(token, rotation) of the sinks that a query saw."""
    return [row[sink] for sink in range(sinks)]


def test_n11_a_rewind_to_before_the_sinks_end_turns_the_new_ones() -> None:
    cache = make_cache(None, 40, chunk=90, sinks=3)
    slots = Slots(cache.layout)
    while cache.length < 120:
        slots.step(cache, ["a"] * cache.room(60))
    assert cache.rollback(2)
    while cache.length < 120:
        rows = slots.step(cache, ["b"] * cache.room(60))[0]
    assert turned(rows[-1], 3) == [("a", 64), ("a", 64), ("b", 64)]


def test_n11_forks_turn_their_sinks_apart() -> None:
    pools = Pools(plan_layout(make_spec(None), 40, chunk=16, sinks=3, sequences=3, policy="sliding"))
    slots = Slots(pools.layout)
    cache, other = pools.open(), pools.open()
    while cache.length < 130:
        slots.step(cache, ["x"] * cache.room(16))
    slots.move(cache.fork(other, cache.length))
    while cache.length < 180:
        rows = slots.step(cache, ["x"] * cache.room(16))[0]
    assert turned(rows[-1], 3) == [("x", 128)] * 3
    assert turned(slots.step(other, ["x"])[0][0], 3) == [("x", 64)] * 3


def test_n11_chunks_end_where_the_sinks_move() -> None:
    cache = make_cache(None, 512, chunk=256, sinks=4)
    slots = Slots(cache.layout)
    counts = []
    while cache.length < 1200:
        counts.append(cache.portion(1200 - cache.length))
        slots.positions(cache, counts[-1])
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
    Slots(cache.layout).positions(cache, 4)
    assert cache.room(1) == 0
    with pytest.raises(PromptTooLongError):
        cache.prepare(1)


def test_a_conversation_alone_lies_in_one_run() -> None:
    """Also beside a second one that began later: the gap behind the first is left to it."""
    pools = Pools(plan_layout(make_spec(None), 1024, chunk=64, sequences=4))
    slots = Slots(pools.layout)
    first, second = pools.open(), pools.open()
    for _ in range(10):
        slots.positions(first, 64)
        slots.positions(second, 64)
    assert [len(cache.rings[0].plan(640, 0).runs) for cache in (first, second)] == [1, 1]


def test_a_fork_shares_all_and_copies_what_it_writes() -> None:
    pools = Pools(plan_layout(make_spec(None), 256, chunk=64, sequences=2))
    slots = Slots(pools.layout)
    cache, other = pools.open(), pools.open()
    slots.positions(cache, 64)
    slots.positions(cache, 50)
    assert list(cache.fork(other, cache.length)) == []
    assert pools.pools[0].free == 8 - 2
    (move,) = other.prepare(1)
    assert (move.source % BLOCK, move.target % BLOCK, move.count) == (0, 0, 50)
    assert pools.pools[0].free == 8 - 3
    assert list(cache.prepare(1)) == []  # the other has a copy, and this one its block to itself
    other.close()
    cache.close()
    assert pools.pools[0].free == 8


def test_a_step_without_free_blocks_changes_nothing() -> None:
    pools = Pools(plan_layout(make_spec(None), 128, chunk=128))
    slots = Slots(pools.layout)
    cache, other = pools.open(), pools.open()
    slots.positions(cache, 100)
    with pytest.raises(PoolFullError, match="1 blocks of keys and values are needed, and 0 of 2 are free"):
        other.prepare(1)
    assert other.length == 0
    cache.close()
    assert slots.positions(other, 2)[1] == {0, 1}


def test_extents_are_a_sequences_own_and_filled_in_order() -> None:
    pools = Pools(plan_layout(make_spec(None), 256, chunk=64, sequences=2), extents=True)
    slots = Slots(pools.layout)
    cache, other = pools.open(), pools.open()
    for _ in range(3):
        slots.positions(cache, 64)
    slots.move(cache.fork(other, cache.length))
    slots.positions(other, 1)
    runs = [sequence.rings[0].plan(192, 0).runs.tolist() for sequence in (cache, other)]
    assert runs == [[[0, 0, 192]], [[0, 256, 192]]]
    with pytest.raises(PoolFullError, match="all 2 sequences of the runtime are in use"):
        pools.open()
    other.close()
    assert pools.open().number == 1


def test_an_interrupt_between_two_counts_is_recovered_from() -> None:
    pools = Pools(plan_layout(make_spec(None), 256, chunk=64, sequences=2))
    slots = Slots(pools.layout)
    cache, other = pools.open(), pools.open()
    slots.positions(cache, 64)
    slots.positions(other, 64)
    pools.pools[0].take(-1, 0)  # and the table that it was for never learns of it
    cache.recover()
    assert (pools.pools[0].free, cache.length) == (7, 0)


def test_a_block_pool_gives_the_gap_that_is_widest() -> None:
    pool = BlockPool(12)
    taken = [pool.take(after, 0) for after in (-1, 0, 1)]
    assert taken == [0, 1, 2]
    assert pool.take(-1, 0) == 3 + 9 // 2  # halfway through what is free
    assert [pool.take(7, 0) for _ in range(5)] == [8, 5, 10, 4, 3]  # behind the 7th, then in the largest gaps
    with pytest.raises(PoolFullError):
        [pool.take(-1, 0) for _ in range(4)]


@pytest.mark.parametrize(
    ("context", "options"), [(0, {}), (8, {"sinks": 8}), (8, {"chunk": 0}), (8, {"sequences": 0}), (8, {"sinks": -1})]
)
def test_impossible_layouts_are_refused(context: int, options: dict[str, int]) -> None:
    with pytest.raises(OptionError):
        plan_layout(make_spec(None), context, policy="sliding", **options)


def test_sinks_need_the_sliding_policy() -> None:
    with pytest.raises(OptionError, match="sliding"):
        plan_layout(make_spec(None), 8, sinks=1)


@dataclass
class Model:
    """A sequence as a list of tokens."""

    cache: Cache
    tokens: list[int] = field(default_factory=list)


class Blocks(RuleBasedStateMachine):
    """Sequences of common pools are fed, rewound, forked and closed; each sees its own tokens, by its rule, always."""

    sequences = Bundle("sequences")

    @initialize(
        window=st.sampled_from([None, 3, 70]),
        context=st.sampled_from([40, 150]),
        chunk=st.integers(1, 90),
        sinks=st.sampled_from([0, 3, 66]),
        extents=st.booleans(),
    )
    def open_pools(self, window: int | None, context: int, chunk: int, sinks: int, extents: bool) -> None:
        sinks = min(sinks, context - 2)
        layout = plan_layout(make_spec(None, window), context, chunk=chunk, sinks=sinks, sequences=3, policy="sliding")
        self.pools = Pools(layout, extents=extents)
        self.slots = Slots(layout)
        self.next = 0
        self.open: list[Model] = []

    @rule(target=sequences)
    def begin(self) -> Any:
        try:
            self.open.append(Model(self.pools.open()))
        except PoolFullError:
            assert self.pools.extents
            assert len(self.open) == 3
            return multiple()
        return self.open[-1]

    @rule(model=sequences, wanted=st.integers(1, 90))
    def feed(self, model: Model, wanted: int) -> None:
        count = model.cache.room(wanted)
        tokens = list(range(self.next, self.next + count))
        self.next += count
        start = len(model.tokens)
        try:
            seen = self.slots.step(model.cache, tokens)
        except PoolFullError:
            assert len(self.open) > 1
            assert not self.pools.extents
            return
        model.tokens += tokens
        for layout, rows in zip(self.pools.layout.rings, seen, strict=True):
            for i, row in enumerate(rows):
                assert set(row) == window_rule(start + i, layout.window, layout.sinks)
                for position, (token, turned) in row.items():
                    assert token == model.tokens[position]
                    is_sink = position < layout.sinks and position < layout.oldest(start)
                    assert turned == (layout.shift(start) if is_sink else 0)

    @rule(model=sequences, share=st.floats(0, 1))
    def rewind(self, model: Model, share: float) -> None:
        length = int(share * len(model.tokens))
        if model.cache.rollback(length):
            del model.tokens[length:]

    @rule(target=sequences, model=sequences, share=st.floats(0, 1))
    def fork(self, model: Model, share: float) -> Any:
        length = int(share * len(model.tokens))
        if not model.cache.exact_at(length):
            return multiple()
        try:
            other = self.pools.open()
        except PoolFullError:
            return multiple()
        self.slots.move(model.cache.fork(other, length))
        self.open.append(Model(other, model.tokens[:length]))
        return self.open[-1]

    @rule(model=consumes(sequences))
    def close(self, model: Model) -> None:
        model.cache.close()
        self.open.remove(model)

    @invariant()
    def nothing_leaks(self) -> None:
        for index, pool in enumerate(getattr(self, "pools", Pools(plan_layout(make_spec(None), 8))).pools):
            used = {block for model in getattr(self, "open", []) for block in model.cache.rings[index].blocks()}
            assert pool.free == pool.blocks - len(used)


TestBlocks = Blocks.TestCase
TestBlocks.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
