"""The keys and values of one sequence over all pools: steps are planned, prepared, run by a backend, and committed."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from edge.errors import OptionError, PoolFullError, PromptTooLongError
from edge.kv import policies
from edge.kv.blocks import BlockPool
from edge.kv.layout import KvLayout
from edge.kv.ring import Longs, Move, RingPlan

# Of a ring: the first block of its table, the positions of its rows, and what it knows besides.
SavedRing = tuple[int, Longs, Mapping[str, npt.NDArray[Any]]]


class Pools:
    """The blocks of a runtime, a pool a ring of its layout, and the sequences that have some.

    With `extents`, each sequence has blocks of its own, in order: what graphs need that see one array a sequence.
    `memory` is asked before more blocks of a ring are used than ever before, and raises PoolFullError where the system
    has no memory for so many.
    """

    def __init__(
        self, layout: KvLayout, *, extents: bool = False, memory: Callable[[int, int], None] | None = None
    ) -> None:
        self.layout = layout
        self.extents = extents
        self.memory = memory
        self.pools = tuple(
            BlockPool(ring.blocks * layout.sequences, extent=ring.blocks if extents else None) for ring in layout.rings
        )
        self._open: weakref.WeakSet[Cache] = weakref.WeakSet()

    def open(self, pinned: int = 0) -> Cache:
        """A new, empty sequence, whose first `pinned` tokens the policy keeps longest.

        Raises PoolFullError where all extents are taken.
        """
        number = 0
        if self.extents:
            taken = {cache.number for cache in self._open}
            free = (n for n in range(self.layout.sequences) if n not in taken)
            number = next(free, -1)
            if number < 0:
                raise PoolFullError(f"all {self.layout.sequences} sequences of the runtime are in use")
        cache = Cache(self, number, pinned)
        self._open.add(cache)
        return cache

    def recount(self) -> None:
        """Count references anew from what open sequences refer to: an interrupt may have come between two changes."""
        for index, pool in enumerate(self.pools):
            pool.recount([block for cache in self._open for block in cache.rings[index].blocks()])

    def _close(self, cache: Cache) -> None:
        self._open.discard(cache)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The next `count` tokens of a sequence, from position `start` on, ring by ring."""

    start: int
    count: int
    rings: tuple[RingPlan, ...]


class Cache:
    """The rings of one sequence. `length` is the number of committed tokens, `number` its extent, if it has one.

    A step is `prepare` (whose moves the caller has the backend make, one by one as they come), `plan`, a forward, and
    `commit`. Without the last, the next step takes its place.
    """

    def __init__(self, pools: Pools, number: int, pinned: int) -> None:
        self.pools, self.number, self.pinned = pools, number, pinned
        self.policy = policies.find(pools.layout.policy)
        self.layout = layout = pools.layout
        self.length = 0
        self.closed = False
        self.rings = tuple(
            self.policy.open(index, ring, pool, number)
            for index, (ring, pool) in enumerate(zip(self.policy.pin(layout, pinned), pools.pools, strict=True))
        )
        self._changing = [ring for ring in self.rings if ring.changing]

    @property
    def dropped(self) -> int:
        """Tokens that no later query can see although the model could have: 0 under `error`."""
        return max(ring.dropped(self.length) for ring in self.rings)

    @property
    def used(self) -> int:
        """Slots that hold a token, over all rings."""
        return sum(ring.held(self.length) for ring in self.rings)

    def room(self, count: int) -> int:
        """How many of the next `count` tokens can be planned at once; 0 where the policy ends the sequence."""
        count = min(count, self.layout.chunk, self._until_change())
        return max(0, min(count, self.layout.context - self.length)) if self.policy.ends else count

    def _until_change(self) -> int:
        """How many tokens from here on see what comes before them at the same places."""
        return min((ring.room(self.length) for ring in self._changing), default=sys.maxsize)

    def portion(self, left: int) -> int:
        """How many of `left` tokens to plan next: even parts, as a last one of a few tokens costs like a whole one."""
        room = self.room(left)
        if room < self.layout.chunk or room == self._until_change():
            return room
        return -(-left // -(-left // room))

    def check(self, count: int) -> None:
        """Raise PromptTooLongError, with both numbers, for more tokens than the policy lets a sequence have."""
        if self.policy.ends and self.length + count > self.layout.context:
            raise PromptTooLongError(self.length + count, self.layout.context)

    def prepare(self, count: int) -> Iterator[Move]:
        """Take the blocks for the next `count` tokens; yields what has to be copied.

        Raises, before anything is taken, PoolFullError where there are not enough free ones, PromptTooLongError where
        the policy ends the sequence, OptionError when `count` exceeds `room`.
        """
        room = self.room(count)
        if not 1 <= count <= room:
            self.check(count)
            raise OptionError(f"{count} tokens in one step; at most {room} can be planned here")
        for ring in self.rings:
            needed = ring.need(self.length, count)
            if needed > ring.pool.free:
                raise PoolFullError(
                    f"{needed} blocks of keys and values are needed, and {ring.pool.free} of {ring.pool.blocks} are "
                    "free; run fewer sequences at once, or choose a smaller context"
                )
            more = ring.pool.blocks - ring.pool.free + needed - ring.pool.peak
            if more > 0 and self.pools.memory:
                self.pools.memory(ring.index, more)
        return self._prepare(count)

    def _prepare(self, count: int) -> Iterator[Move]:
        for ring in self.rings:
            yield from ring.prepare(self.length, count)

    def plan(self, count: int) -> StepPlan:
        """The step that was prepared."""
        return StepPlan(self.length, count, tuple(ring.plan(self.length, count) for ring in self.rings))

    def commit(self, count: int) -> None:
        """Keep the first `count` rows of a plan, which a forward has run."""
        for ring in self._changing:
            ring.commit(self.length, count)
        self.length += count

    def rollback(self, length: int) -> bool:
        """Forget everything from position `length` on. False, and no change, if a cold prefill is needed instead."""
        if length > self.length:
            raise OptionError(f"cannot roll back to {length}: the sequence has {self.length} tokens")
        if not self.exact_at(length):
            return False
        for ring in self.rings:
            ring.truncate(length)
        self.length = length
        return True

    def exact_at(self, length: int) -> bool:
        """Whether everything that a query at `length` would see is still held."""
        return all(ring.exact_at(length) for ring in self.rings)

    def is_alike(self, length: int, pinned: int) -> bool:
        """Whether the first `length` tokens would have seen the same with so many pinned ones."""
        if pinned == self.pinned:
            return True
        others = self.policy.pin(self.layout, pinned)
        return all(
            ring.layout.bounded or (ring.table.first == 0 and length <= other.window + other.sinks)
            for ring, other in zip(self.rings, others, strict=True)
        ) and not any(ring.dropped(length) for ring in self.rings)

    def fork(self, other: Cache, length: int) -> Iterator[Move]:
        """Make another, empty sequence of these pools a copy of the first `length` tokens of this one.

        Yields what has to be copied: with extents everything, and else nothing, since blocks are shared.
        """
        assert self.exact_at(length)
        for ring, target in zip(self.rings, other.rings, strict=True):
            if self.pools.extents:
                yield from ring.copy_to(target, length)
            else:
                ring.share_with(target)
            target.truncate(length)
            if other.pinned != self.pinned:
                target.unturn()
        other.length = length

    def restore(self, length: int, saved: Sequence[SavedRing]) -> None:
        """Take blocks for a saved sequence of `length` tokens.

        Raises PoolFullError, and ValueError or KeyError for what these rings cannot hold; the sequence is empty then.
        """
        try:
            for ring, (first, positions, state) in zip(self.rings, saved, strict=True):
                ring.restore(first, length, positions, state)
        except BaseException:
            self.reset()
            raise
        self.length = length

    def reset(self) -> None:
        """Forget everything."""
        for ring in self.rings:
            ring.release()
        self.length = 0

    def recover(self) -> None:
        """`reset` after an interrupt, which may have come anywhere."""
        for ring in self.rings:
            ring.forget()
        self.length = 0
        self.pools.recount()

    def close(self) -> None:
        """Give back all blocks, and the extent. Idempotent."""
        if not self.closed:
            self.closed = True
            self.reset()
            self.pools._close(self)
