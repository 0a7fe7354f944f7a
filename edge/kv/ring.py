"""The blocks of one sequence in one pool.

Position p lies in block p // BLOCK of the ring's table, at the same place in the block. A query at p sees itself, the
`window - 1` positions before it and the sinks. Visibility follows from positions alone. New rows go to slots that no
query sees, so a forward that fails leaves no trace. When the ring has all the blocks it may have, the oldest goes.

A block that others refer to as well is copied before its first write. Sinks are kept as they were written; once tokens
are dropped, queries see a copy of them that stands directly before the oldest kept token, in steps of SINK_STEP
positions: for a query at p, shift is p + 1 - window - sinks, rounded down to a multiple of SINK_STEP and at least 0. It
is a rule of the position alone; `Cache.room` ends a chunk where it changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.errors import PoolFullError
from edge.kv.blocks import NONE, BlockPool, Table
from edge.kv.layout import BLOCK, SINK_STEP, RingLayout

Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Move:
    """Copy `count` rows of a pool from slot `source` on to slot `target` on, keys rotated on by `shift` positions."""

    ring: int
    source: int
    target: int
    count: int
    shift: int = 0


def unroll(runs: Longs) -> tuple[Longs, Longs]:
    """(position, slot) of every row of runs (position, slot, count), int64 [n, 3]."""
    counts = runs[:, 2]
    inside = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
    return np.repeat(runs[:, 0], counts) + inside, np.repeat(runs[:, 1], counts) + inside


def runs_of(firsts: Longs, seconds: Longs) -> Longs:
    """Runs (first, second, count) of pairs, int64 [n, 3]: those that follow one another in both belong together."""
    breaks = np.flatnonzero((np.diff(firsts) != 1) | (np.diff(seconds) != 1)) + 1
    starts = np.concatenate([np.zeros(min(1, len(firsts)), np.int64), breaks])
    counts = np.diff(np.append(starts, len(firsts)))
    return np.stack([firsts[starts], seconds[starts], counts], axis=1)


@dataclass(frozen=True, slots=True)
class RingPlan:
    """What the queries of a chunk attend to in one ring: `count` new tokens from position `start` on.

    runs       int64 [n, 3]  (position, slot, count) of what any of the queries sees, the new rows included, ascending
    sinks      the first positions that are seen whatever the window
    attention  where it is wanted, float32 [count, rows of the runs], zeros: the backend adds how much of its attention
               each query pays to each row, over all heads and layers of the ring
    """

    start: int
    count: int
    runs: Longs
    window: int
    sinks: int
    attention: npt.NDArray[np.float32] | None = None

    @property
    def positions(self) -> Longs:
        """The position of each new row, int64 [count]."""
        return np.arange(self.start, self.start + self.count, dtype=np.int64)

    @property
    def writes(self) -> Longs:
        """The slot of each new row, int64 [count]."""
        held, slots = self.unrolled()
        return slots[held >= self.start]

    def unrolled(self) -> tuple[Longs, Longs]:
        """(position, slot) of every row of the runs, int64 [rows] each, by ascending position."""
        return unroll(self.runs)

    def mask(self, held: Longs) -> npt.NDArray[np.bool_]:
        """Who sees whom, [count, len(held)], for rows at the positions `held`; -1 is nobody's."""
        distance = self.positions[:, None] - held
        return (held >= 0) & (distance >= 0) & ((distance < self.window) | (held < self.sinks))


class Ring:
    """The blocks of one sequence in one pool. `index` is the ring's, `owner` the sequence's extent, if it has one.

    changing  what is seen of what came before changes at some positions: `room` and `commit` matter
    """

    def __init__(self, index: int, layout: RingLayout, pool: BlockPool, owner: int) -> None:
        self.index, self.layout, self.pool, self.owner = index, layout, pool, owner
        self.changing = layout.sinks > 0
        self.table = Table()
        self.sinks: list[int] = []  # blocks of the sinks as they were written, once the table has dropped them
        self.moved: list[int] = []  # those of the rotated copy, and how far it is rotated
        self.shift = 0

    def held(self, length: int) -> int:
        """How many of the first `length` positions still lie in the ring."""
        kept = min(self.layout.sinks, length) if self.sinks else 0
        return max(0, length - self.table.first * BLOCK) + kept

    def dropped(self, length: int) -> int:
        """How many of the first `length` positions no later query sees although the model could have."""
        return 0 if self.layout.bounded else max(0, length - self.layout.window - self.layout.sinks)

    def room(self, length: int) -> int:
        """How many tokens from `length` on one chunk can have: those that see the sinks at the same places."""
        lag = self.layout.lag(length)
        return SINK_STEP - (lag % SINK_STEP if lag > 0 else lag)

    def need(self, start: int, count: int) -> int:
        """Make room by dropping the oldest blocks, and say how many free blocks a step then takes from the pool."""
        more = max(0, -(-(start + count) // BLOCK) - self.table.end)
        oldest = self.layout.oldest(start) // BLOCK
        while len(self.table) + more > self.layout.window_blocks and self.table.first < oldest and len(self.table):
            self._drop()
        more += self._writes_to_shared(start)
        if self.layout.shift(start) and self._must_turn(self.layout.shift(start)):
            more += self.layout.sink_blocks - len(self.moved) + sum(map(self.pool.is_shared, self.moved))
        return more

    def _drop(self) -> None:
        block = self.table.drop()
        if self.table.first <= self.layout.sink_blocks:
            self.sinks.append(block)
        else:
            self.pool.release(block)

    def _writes_to_shared(self, start: int) -> bool:
        return start % BLOCK > 0 and self.table.end * BLOCK - start < BLOCK and self.pool.is_shared(self.table.last)

    def _must_turn(self, shift: int) -> bool:
        return shift != self.shift or len(self.moved) < self.layout.sink_blocks

    def prepare(self, start: int, count: int) -> Iterator[Move]:
        """Take the blocks that `need` counted; yields what has to be copied, before a copy counts as ours."""
        if self._writes_to_shared(start):
            block = self._take()
            yield Move(self.index, self.table.last * BLOCK, block * BLOCK, start % BLOCK)
            self.pool.release(self.table.pop())
            self.table.append(block)
        while self.table.end * BLOCK < start + count:
            self.table.append(self._take())
        shift = self.layout.shift(start)
        if shift and self._must_turn(shift):
            yield from self._turn(shift)

    def _take(self) -> int:
        return self.pool.take(self.table.last, self.owner)

    def _turn(self, shift: int) -> Iterator[Move]:
        if any(map(self.pool.is_shared, self.moved)) or not self.moved:
            fresh = [self.pool.take(NONE, self.owner) for _ in range(self.layout.sink_blocks)]
            for block in self.moved:
                self.pool.release(block)
            self.moved = fresh
        for index, (source, target) in enumerate(zip(self._sink_blocks(len(self.moved)), self.moved, strict=True)):
            count = min(BLOCK, self.layout.sinks - index * BLOCK)
            yield Move(self.index, source * BLOCK, target * BLOCK, count, shift)
        self.shift = shift

    def _sink_blocks(self, count: int) -> list[int]:
        """The first blocks of the sinks as they were written: dropped from the table, or still in it."""
        rest = range(len(self.sinks), count)
        return self.sinks[:count] + [self.table.runs(at * BLOCK, at * BLOCK + 1)[0][1] // BLOCK for at in rest]

    def plan(self, start: int, count: int) -> RingPlan:
        """What a step sees that has been prepared."""
        layout = self.layout
        oldest = layout.oldest(start)
        runs = self.table.runs(oldest, start + count)
        first = min(layout.sinks, oldest)  # sinks that are no longer in the window
        if first:
            shift = layout.shift(start)
            blocks = self.moved if shift else self._sink_blocks(-(-first // BLOCK))
            runs[:0] = [(i * BLOCK, block * BLOCK, min(BLOCK, first - i * BLOCK)) for i, block in enumerate(blocks)]
        return RingPlan(start, count, np.array(runs, np.int64).reshape(-1, 3), layout.window, layout.sinks)

    def commit(self, start: int, count: int) -> None:
        """The first `count` rows of the latest plan are kept."""

    def rows(self, length: int) -> tuple[Longs, Longs]:
        """(position, slot) of every token below `length` that is held as it was written, int64 [rows] each."""
        kept = ((i * BLOCK, block * BLOCK) for i, block in enumerate(self.sinks))
        runs = [(at, slot, min(BLOCK, self.layout.sinks - at)) for at, slot in kept]
        return unroll(np.array(runs + self.table.runs(0, length), np.int64).reshape(-1, 3))

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """What is known besides the rows."""
        return {}

    def restore(self, first: int, length: int, positions: Longs, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take blocks for rows at `positions`, which `rows` gave, with what `state` gave; `first` is the table's first.

        Raises PoolFullError, ValueError or KeyError for what no ring of this layout holds.
        """
        blocks = -(-length // BLOCK) - first
        if not (0 <= first * BLOCK <= self.layout.oldest(length) and 0 <= blocks <= self.layout.window_blocks):
            raise ValueError(f"blocks from {first} on for {length} tokens")
        kept = min(first, self.layout.sink_blocks)
        self._check_free(blocks + kept)
        self.table = Table(first)
        for _ in range(kept):
            self.sinks.append(self._take())
        for _ in range(blocks):
            self.table.append(self._take())

    def _check_free(self, count: int) -> None:
        if count > self.pool.free:
            raise PoolFullError(f"{count} blocks of keys and values are needed, and {self.pool.free} are free")

    def exact_at(self, length: int) -> bool:
        """Whether everything that a query at `length` would see is still held."""
        return length == 0 or self.table.first * BLOCK <= self.layout.oldest(length)

    def truncate(self, length: int) -> None:
        """Let go of everything from position `length` on, where `exact_at` allows that."""
        if length == 0:
            self.release()
        while self.table.end > max(self.table.first, -(-length // BLOCK)):
            self.pool.release(self.table.pop())
        if length < self.layout.sinks:  # others will be written there
            self.unturn()

    def unturn(self) -> None:
        """Let go of the sinks' rotated copy."""
        for block in self.moved:
            self.pool.release(block)
        self.moved, self.shift = [], 0

    def blocks(self) -> list[int]:
        """All blocks that this ring refers to."""
        return [*self.table, *self.sinks, *self.moved]

    def forget(self) -> None:
        """Refer to no block. The pool's counts stay as they were."""
        self.table, self.sinks, self.moved, self.shift = Table(), [], [], 0

    def release(self) -> None:
        """Let go of every block."""
        blocks = self.blocks()
        self.forget()
        for block in blocks:
            self.pool.release(block)

    def share_with(self, other: Ring) -> None:
        """Let another, empty ring of the pool refer to the same blocks."""
        other.table, other.sinks, other.moved, other.shift = self.table.copy(), [*self.sinks], [*self.moved], self.shift
        for block in self.blocks():
            self.pool.share(block)

    def copy_to(self, other: Ring, length: int) -> Iterator[Move]:
        """Give another, empty ring the rows below position `length` in its own blocks; yields what is to be copied."""
        for index, block in enumerate(self.sinks):
            other.sinks.append(other._take())
            count = min(BLOCK, self.layout.sinks - index * BLOCK)
            yield Move(self.index, block * BLOCK, other.sinks[-1] * BLOCK, count)
        other.table = Table(self.table.first)
        for start, block in zip(range(self.table.first * BLOCK, length, BLOCK), self.table, strict=False):
            other.table.append(other._take())
            yield Move(self.index, block * BLOCK, other.table.last * BLOCK, min(BLOCK, length - start))
