"""`evict`: of older tokens those stay that got the most attention (H2O, arXiv:2306.14048; SnapKV, arXiv:2404.14469).

Of `context` tokens half are the latest ones and a few the first (sinks), which always stay. Whenever all blocks are
full, a block's worth of the others goes: those with the lowest scores. A score is the attention that the queries of the
latest BLOCK positions paid to a token, over the heads and layers of the ring, and half of its score the time before;
equal scores favour the later token. What stays closes up: the block with the fewest of them is emptied into the gaps of
the others.

Tokens keep their positions, so a sequence ends where the model was trained to. When tokens go is a rule of positions
alone: `room` ends a chunk there, and attention counts query by query. So a rewind to behind the latest time is exact,
and one to before it needs a cold prefill.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.errors import OptionError
from edge.kv.blocks import NONE, BlockPool, Table
from edge.kv.layout import BLOCK, KvLayout, RingLayout
from edge.kv.policies.policy import Policy, Room
from edge.kv.ring import Longs, Move, Ring, RingPlan, runs_of, unroll

_LEAST = 4  # blocks: two of latest tokens, one of others, and one that comes

Reals = npt.NDArray[np.float64]


class Evict(Policy):
    summary = "drop the older tokens that got the least attention"
    sinks = 4
    attention = True

    def context(self, room: Room) -> int:
        if room.context < _LEAST * BLOCK:
            raise OptionError(f"a context of {room.context}; evict needs at least {_LEAST * BLOCK}")
        return room.trained

    def ring(self, room: Room) -> RingLayout:
        return RingLayout(room.context // BLOCK, room.trained, room.sinks, bounded=False)

    def geometry(self, layout: KvLayout) -> dict[str, Any]:
        return {"blocks": [None if ring.bounded else ring.blocks for ring in layout.rings]}

    def pin(self, layout: KvLayout, pinned: int) -> tuple[RingLayout, ...]:
        """The pinned tokens are sinks, as far as there is a block besides for others."""
        return tuple(
            ring if ring.bounded else replace(ring, sinks=max(ring.sinks, min(pinned, _most_pinned(ring))))
            for ring in layout.rings
        )

    def open(self, index: int, layout: RingLayout, pool: BlockPool, owner: int) -> Ring:
        return (Ring if layout.bounded else EvictRing)(index, layout, pool, owner)


def _most_pinned(ring: RingLayout) -> int:
    return (ring.blocks - ring.blocks // 2 - 1) * BLOCK


@dataclass(frozen=True, slots=True)
class _Going:
    """What a full ring decides on.

    leaving  blocks of the table that are no longer latest ones
    older    (position, slot) of what stays of these and of older ones
    moved    slots of those of them that lie in block `emptied`, and `gaps`, the slots that they go to
    """

    leaving: int
    older: Longs
    moved: Longs
    gaps: Longs
    emptied: int
    scored: Longs
    scores: Reals


class EvictRing(Ring):
    """A ring whose table holds the latest blocks, and `older` what stays of others: (position, slot), by position.

    scores    of `scored` positions, by position, when tokens last went
    observed  query position, positions and attention of what it saw, for each query since BLOCK before the next time
    """

    def __init__(self, index: int, layout: RingLayout, pool: BlockPool, owner: int) -> None:
        super().__init__(index, layout, pool, owner)
        self.changing = True
        self.forget()

    def forget(self) -> None:
        super().forget()
        self.older: Longs = np.zeros((0, 2), np.int64)
        self.older_blocks: list[int] = []
        self.scored: Longs = np.zeros(0, np.int64)
        self.scores: Reals = np.zeros(0)
        self.observed: list[tuple[int, Longs, npt.NDArray[np.float32]]] = []
        self._went = 0  # the position at which tokens last went; 0: none have
        self._plan: RingPlan | None = None

    def held(self, length: int) -> int:
        return len(self.older) + max(0, length - self.table.first * BLOCK)

    def dropped(self, length: int) -> int:
        return length - self.held(length)

    def blocks(self) -> list[int]:
        return [*self.table, *self.older_blocks]

    def room(self, length: int) -> int:
        left = self._next() - length
        return left if left else BLOCK

    def _next(self) -> int:
        """The position at which tokens go next: all blocks are full there."""
        return (self.table.end + self.layout.blocks - len(self.table) - len(self.older_blocks)) * BLOCK

    def need(self, start: int, count: int) -> int:
        more = max(0, -(-(start + count) // BLOCK) - self.table.end) + self._writes_to_shared(start)
        if start == self._next():
            going = self._decide(start)
            more += len(self._written_and_shared(going)) - (not self.pool.is_shared(going.emptied))
        return more

    def prepare(self, start: int, count: int) -> Iterator[Move]:
        if start == self._next():
            yield from self._let_go(start, self._decide(start))
        yield from super().prepare(start, count)

    def _decide(self, start: int) -> _Going:
        """Who stays at a position at which all blocks are full. Changes nothing."""
        recent = self.layout.blocks // 2
        leaving = list(self.table)[: start // BLOCK - recent - self.table.first]
        older = np.concatenate([self.older, _by_slot(self.table.runs(0, (start // BLOCK - recent) * BLOCK))])
        scored, scores = self._scores_now(start)
        each = scores[np.searchsorted(scored, older[:, 0])]
        each[older[:, 0] < self.layout.sinks] = np.inf
        stays = np.ones(len(older), np.bool_)
        stays[np.lexsort((older[:, 0], each))[:BLOCK]] = False
        blocks = [*self.older_blocks, *leaving]
        counts = [int(np.count_nonzero(older[stays, 1] // BLOCK == block)) for block in blocks]
        emptied = blocks[int(np.argmin(counts))]
        inside = older[:, 1] // BLOCK == emptied
        moved, gaps = older[stays & inside], np.sort(older[~stays & ~inside, 1])
        return _Going(len(leaving), older[stays], moved[:, 1], gaps, emptied, scored, scores)

    def _scores_now(self, start: int) -> tuple[Longs, Reals]:
        """The score of every position that is held."""
        positions = np.concatenate([self.older[:, 0], np.arange(self.table.first * BLOCK, start)])
        scores = np.zeros(len(positions))
        known = np.isin(positions, self.scored)
        scores[known] = self.scores[np.searchsorted(self.scored, positions[known])] / 2
        for _, held, attention in self.observed:
            scores[np.searchsorted(positions, held)] += attention
        return positions, scores

    def _written_and_shared(self, going: _Going) -> list[int]:
        """Blocks that others have as well, and that what stays is to be moved to."""
        return [block for block in np.unique(going.gaps // BLOCK).tolist() if self.pool.is_shared(block)]

    def _let_go(self, start: int, going: _Going) -> Iterator[Move]:
        own: dict[int, int] = {}
        for block in self._written_and_shared(going):
            own[block] = self.pool.take(NONE, self.owner)
            yield Move(self.index, block * BLOCK, own[block] * BLOCK, BLOCK)
            self.pool.release(block)
        for source, target, count in runs_of(going.moved, _renamed(going.gaps, own)).tolist():
            yield Move(self.index, source, target, count)
        blocks = self.older_blocks + [self.table.drop() for _ in range(going.leaving)]
        self.older_blocks = [own.get(block, block) for block in blocks if block != going.emptied]
        older = going.older.copy()
        inside = older[:, 1] // BLOCK == going.emptied
        older[inside, 1] = going.gaps
        older[:, 1] = _renamed(older[:, 1], own)
        self.older = older
        self.scored, self.scores = going.scored, going.scores
        self.observed = []
        self._went = start
        self.pool.release(going.emptied)

    def plan(self, start: int, count: int) -> RingPlan:
        table = np.array(self.table.runs(0, start + count), np.int64).reshape(-1, 3)
        runs = np.concatenate([runs_of(self.older[:, 0], self.older[:, 1]), table])
        attention = None
        if start + count > self._next() - BLOCK:
            attention = np.zeros((count, int(runs[:, 2].sum())), np.float32)
        self._plan = RingPlan(start, count, runs, self.layout.window, 0, attention)
        return self._plan

    def commit(self, start: int, count: int) -> None:
        plan, self._plan = self._plan, None
        if plan is None or plan.attention is None:
            return
        held, _ = plan.unrolled()
        for index in range(max(0, self._next() - BLOCK - start), count):
            self.observed.append((start + index, held, plan.attention[index]))

    def rows(self, length: int) -> tuple[Longs, Longs]:
        rows = np.concatenate([self.older, _by_slot(self.table.runs(0, length))])
        return rows[:, 0], rows[:, 1]

    def exact_at(self, length: int) -> bool:
        return length == 0 or length >= self._went

    def truncate(self, length: int) -> None:
        super().truncate(length)
        self.observed = [seen for seen in self.observed if seen[0] < length]

    def share_with(self, other: Ring) -> None:
        super().share_with(other)
        assert isinstance(other, EvictRing)
        self._tell(other)
        other.older, other.older_blocks = self.older, [*self.older_blocks]

    def copy_to(self, other: Ring, length: int) -> Iterator[Move]:
        assert isinstance(other, EvictRing)
        yield from super().copy_to(other, length)
        own: dict[int, int] = {}
        for block in self.older_blocks:
            own[block] = self.pool.take(NONE, other.owner)
            other.older_blocks.append(own[block])
            yield Move(self.index, block * BLOCK, own[block] * BLOCK, BLOCK)
        other.older = self.older.copy()
        other.older[:, 1] = _renamed(self.older[:, 1], own)
        self._tell(other)

    def _tell(self, other: EvictRing) -> None:
        """What is known of attention."""
        other.scored, other.scores = self.scored, self.scores
        other.observed, other._went = [*self.observed], self._went

    def state(self) -> dict[str, npt.NDArray[Any]]:
        seen = np.unique(np.concatenate([np.zeros(0, np.int64), *(held for _, held, _ in self.observed)]))
        attention = np.zeros((len(self.observed), len(seen)), np.float32)
        for row, (_, held, given) in zip(attention, self.observed, strict=True):
            row[np.searchsorted(seen, held)] = given
        queries = np.array([query for query, *_ in self.observed], np.int64)
        return {
            "went": np.array([self._went], np.int64), "scored": self.scored, "scores": self.scores,
            "queries": queries, "seen": seen, "attention": attention,
        }  # fmt: skip

    def restore(self, first: int, length: int, positions: Longs, state: Mapping[str, npt.NDArray[Any]]) -> None:
        older = positions[positions < first * BLOCK]
        if len(older) % BLOCK or (first > 0) != (len(older) > 0) or np.any(np.diff(positions) <= 0):
            raise ValueError(f"positions before block {first}")
        blocks = -(-length // BLOCK) - first
        if not 0 <= blocks <= self.layout.blocks - len(older) // BLOCK:
            raise ValueError(f"blocks from {first} on for {length} tokens")
        self._check_free(blocks + len(older) // BLOCK)
        self.older_blocks = [self.pool.take(NONE, self.owner) for _ in range(len(older) // BLOCK)]
        self.table = Table(first)
        for _ in range(blocks):
            self.table.append(self._take())
        slots = np.array(self.older_blocks, np.int64)[:, None] * BLOCK + np.arange(BLOCK)
        self.older = np.stack([older, slots.reshape(-1)], axis=1)
        self.scored, self.scores, self._went = state["scored"], state["scores"], int(state["went"][0])
        queries, seen, attention = state["queries"], state["seen"], state["attention"]
        rising = all(array.ndim == 1 and not np.any(np.diff(array) <= 0) for array in (self.scored, seen))
        fits = self.scores.shape == self.scored.shape and attention.shape == (len(queries), len(seen))
        known = 0 <= self._went <= length and np.isin(seen, positions).all()
        if not (rising and fits and known and np.isfinite(self.scores).all() and np.isfinite(attention).all()):
            raise ValueError("what is known of attention")
        self.observed = [(query, seen, row) for query, row in zip(queries.tolist(), attention, strict=True)]


def _by_slot(runs: list[tuple[int, int, int]]) -> Longs:
    """(position, slot) of every row of runs, int64 [rows, 2]."""
    return np.stack(unroll(np.array(runs, np.int64).reshape(-1, 3)), axis=1)


def _renamed(slots: Longs, blocks: Mapping[int, int]) -> Longs:
    """Slots with some blocks in the place of others."""
    names = [blocks.get(block, block) for block in (slots // BLOCK).tolist()]
    return np.array(names, np.int64) * BLOCK + slots % BLOCK
