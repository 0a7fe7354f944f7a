"""Bookkeeping of the KV ring: which position each slot holds, and who sees whom. numpy only, no tensors.

Layers that keep their tokens alike (`edge.layers.KvSpec`) share a ring. A ring of `slots` slots puts position p into
slot p until it is full and then goes round, leaving its first `sinks` slots alone. Visibility follows from positions
only: a query at p sees itself, the `window - 1` positions before it and the sinks. New rows are attended before they
are stored, so a chunk never destroys a key that its own first queries need, and rows that are not committed change
nothing.

Sinks, once tokens are dropped, stand before the oldest kept one: with `shift` the distance that they have moved, sink
i counts as position i + shift. For a query at p, shift is p + 1 - window - sinks, which would put them directly before
the oldest, rounded down to a multiple of SINK_STEP and at least 0: a rule of the position alone. `RingPlan.shift` says
so and the session has the backend rotate their keys; `Cache.room` ends a chunk where the shift changes.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from edge.decoder import DecoderSpec
from edge.errors import OptionError, PromptTooLongError
from edge.layers import KvSpec

Policy = Literal["error", "sliding"]
KvDtype = Literal["auto", "float32", "float16", "int8"]
Positions = npt.NDArray[np.int64]
SINK_STEP = 64


@dataclass(frozen=True, slots=True)
class RingLayout:
    """Size of one ring: its `slots`, the `window` of its queries (itself included) and the `sinks` kept for ever.

    `bounded`: the window is the model's own, so leaving it drops nothing that the model would have seen.
    """

    slots: int
    window: int
    sinks: int
    bounded: bool

    def lag(self, position: int) -> int:
        """How far sinks directly before the oldest token that a query sees would have moved; none do below 0."""
        return position + 1 - self.window - self.sinks

    def slots_of(self, positions: Positions) -> npt.NDArray[np.int32]:
        """The slot of each of some positions in ascending order."""
        if len(positions) and positions[-1] < self.slots:
            return positions.astype(np.int32)  # not once round: the common case, worth its microseconds
        cycled = self.sinks + (positions - self.sinks) % (self.slots - self.sinks)
        return np.where(positions < self.sinks, positions, cycled).astype(np.int32)


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The rings of a sequence (in the order of `DecoderSpec.kv_groups`), and how many sequences a backend holds.

    `context` is what the planner promises, `chunk` the most new tokens in one forward.
    """

    rings: tuple[RingLayout, ...]
    context: int
    chunk: int
    sequences: int = 1


def plan_layout(spec: DecoderSpec, context: int, *, chunk: int = 256, sinks: int = 0, sequences: int = 1) -> KvLayout:
    """Rings for a context: a layer of window W needs W slots and a chunk's worth of slack, others the whole context.

    Raises OptionError when the sinks leave no room for a window.
    """
    if not 1 <= context <= 2**31 or chunk < 1 or sequences < 1:
        raise OptionError(f"context {context}, chunk {chunk} and sequences {sequences} must be positive")
    if not 0 <= sinks < context:
        raise OptionError(f"{sinks} sinks do not fit a context of {context}")
    chunk = min(chunk, context - sinks)
    rings = []
    for kv in spec.kv_groups:
        window = kv.window
        if window is None or window >= context:
            rings.append(RingLayout(context, context - sinks, sinks, bounded=False))
        else:
            rings.append(RingLayout(min(context, window + chunk), window, 0, bounded=True))
    return KvLayout(tuple(rings), context, chunk, sequences)


# How numbers are kept: dtype → (bytes of a number, bytes of the scale that each head's key and each value then have).
_STORED = {"float32": (4, 0), "float16": (2, 0), "int8": (1, 2)}


def row_bytes(kv: KvSpec, dtype: str) -> int:
    """Bytes of what a layer keeps of one token. Raises OptionError for a dtype that is none."""
    if dtype not in _STORED:
        raise OptionError(f"kv_dtype is {dtype!r}; it must be one of {', '.join(_STORED)}")
    number, scale = _STORED[dtype]
    return kv.kv_heads * sum(dim * number + scale for dim in (kv.key_dim, kv.value_dim) if dim)


@dataclass(frozen=True, slots=True)
class RingPlan:
    """Where a chunk of `count` new rows, from position `start` on, goes in one ring, and what its queries see.

    held    int64 [filled]  the position in each slot before the chunk, -1 for none: the ring's own record, read-only
    causal  every held row is seen by every query, so that no mask but the causal one is needed
    shift   how far the sinks stand from where they were written
    """

    start: int
    count: int
    held: Positions
    layout: RingLayout
    causal: bool
    shift: int

    @property
    def positions(self) -> Positions:
        """The position of each new row, int64 [count]."""
        return np.arange(self.start, self.start + self.count, dtype=np.int64)

    @property
    def indices(self) -> npt.NDArray[np.int32]:
        """The slot that each new row is stored to, int32 [count]."""
        return self.layout.slots_of(self.positions)

    @property
    def follows(self) -> bool:
        """Whether the new rows' slots are those right behind the held ones, one after another."""
        return self.start == len(self.held) and self.start + self.count <= self.layout.slots

    def mask(self) -> npt.NDArray[np.bool_]:
        """Who sees whom, [n, filled + n]: first the held slots, then the new rows."""
        positions = self.positions
        query = positions[:, None]
        old = (self.held >= 0) & (query - self.held < self.layout.window)
        if self.layout.sinks:
            old |= (self.held >= 0) & (self.held < self.layout.sinks)
        distance = query - positions
        return np.concatenate([old, (distance >= 0) & (distance < self.layout.window)], axis=1)


class Ring:
    """The bookkeeping of one ring of one sequence."""

    def __init__(self, layout: RingLayout) -> None:
        self.layout = layout
        self._held: Positions = np.full(layout.slots, -1, np.int64)
        self._written = 0  # positions below this have been stored at some time

    @property
    def filled(self) -> int:
        """How many slots, from the first on, have been written."""
        return min(self._written, self.layout.slots)

    def plan(self, length: int, count: int) -> RingPlan:
        layout, last = self.layout, length + count - 1
        held = self._held[: self._written]  # no more than there are
        held.flags.writeable = False
        causal = len(held) == length and last < layout.window
        shift = max(0, layout.lag(last)) // SINK_STEP * SINK_STEP if layout.sinks else 0
        return RingPlan(length, count, held, layout, causal, shift)

    def commit(self, plan: RingPlan, count: int) -> None:
        """Keep the first `count` rows of a plan."""
        end = plan.start + count
        if end <= self.layout.slots:
            self._held[plan.start : end] = np.arange(plan.start, end)
        else:
            self._held[plan.indices[:count]] = plan.positions[:count]
        self._written = max(self._written, end)

    def exact_at(self, length: int) -> bool:
        """Whether everything that a query at `length` would see is still held."""
        oldest = max(0, length - self.layout.window + 1)
        needed = np.arange(oldest, length, dtype=np.int64)
        sinks = np.arange(min(self.layout.sinks, length), dtype=np.int64)
        needed = np.concatenate([sinks, needed])
        return bool(np.array_equal(self._held[self.layout.slots_of(needed)], needed))

    def rollback(self, length: int) -> None:
        self._held[self._held >= length] = -1
        if self._written <= self.layout.slots:
            self._written = length

    def reset(self) -> None:
        self._held[:] = -1
        self._written = 0


class Cache:
    """The rings of one sequence under one overflow policy. `length` is the number of committed tokens."""

    def __init__(self, layout: KvLayout, policy: Policy = "error") -> None:
        if policy not in ("error", "sliding"):
            raise OptionError(f"unknown context policy {policy!r}; known are error and sliding")
        if policy == "error" and any(ring.sinks for ring in layout.rings):
            raise OptionError("sinks are kept only by the sliding policy; choose it or leave out the sinks")
        self.layout = layout
        self.policy = policy
        self.rings = tuple(Ring(ring) for ring in layout.rings)
        self.length = 0
        # How many tokens last before the first is let go that the model could have seen; None: it bounds every ring.
        self._lasting = min((ring.slots for ring in layout.rings if not ring.bounded), default=None)

    @property
    def dropped(self) -> int:
        """Tokens that no later query can see although the model could have: 0 under `error`."""
        return 0 if self._lasting is None else max(0, self.length - self._lasting)

    @property
    def used(self) -> int:
        """Slots that hold a token, over all rings."""
        return sum(int(np.count_nonzero(ring._held >= 0)) for ring in self.rings)

    def room(self, count: int) -> int:
        """How many of the next `count` tokens can be planned at once; 0 when the policy is `error` and it is full."""
        count = min(count, self.layout.chunk)
        if self.policy == "error":
            return max(0, min(count, self.layout.context - self.length))
        fits = min(ring.layout.slots - ring.layout.sinks for ring in self.rings)
        return min(count, fits, self._until_sinks_move())

    def _until_sinks_move(self) -> int:
        """How many tokens from here on see the sinks at the same places."""
        lags = [ring.layout.lag(self.length) for ring in self.rings if ring.layout.sinks]
        return min((SINK_STEP - (lag % SINK_STEP if lag > 0 else lag) for lag in lags), default=sys.maxsize)

    def portion(self, left: int) -> int:
        """How many of `left` tokens to plan next: even parts, as a last one of a few tokens costs like a whole one."""
        room = self.room(left)
        if room < self.layout.chunk or room == self._until_sinks_move():
            return room
        return -(-left // -(-left // room))

    def check(self, count: int) -> None:
        """Raise PromptTooLongError, with both numbers, unless `count` more tokens fit the context."""
        if self.length + count > self.layout.context:
            raise PromptTooLongError(self.length + count, self.layout.context)

    def plan(self, count: int) -> tuple[RingPlan, ...]:
        """Slots for the next `count` tokens, a plan per ring. Nothing changes until `commit`.

        Raises PromptTooLongError under the `error` policy, OptionError when `count` exceeds `room`.
        """
        room = self.room(count)
        if not 1 <= count <= room:
            if self.policy == "error":
                self.check(count)
            raise OptionError(f"{count} tokens in one step; at most {room} can be planned here")
        return tuple(ring.plan(self.length, count) for ring in self.rings)

    def commit(self, plans: Sequence[RingPlan], count: int | None = None) -> int:
        """Keep the first `count` rows of a plan (all by default). Returns how many tokens were dropped for them."""
        count = plans[0].count if count is None else count
        for ring, plan in zip(self.rings, plans, strict=True):
            ring.commit(plan, count)
        self.length += count
        return min(count, self.dropped)

    def rollback(self, length: int) -> bool:
        """Forget everything from position `length` on. False, and no change, if a cold prefill is needed instead."""
        if length > self.length:
            raise OptionError(f"cannot roll back to {length}: the sequence has {self.length} tokens")
        if not all(ring.exact_at(length) for ring in self.rings):
            return False
        for ring in self.rings:
            ring.rollback(length)
        self.length = length
        return True

    def fork(self) -> Cache:
        """An independent copy of the bookkeeping; the caller has the backend copy the slots."""
        return copy.deepcopy(self)

    def reset(self) -> None:
        for ring in self.rings:
            ring.reset()
        self.length = 0

    def to_json(self) -> dict[str, Any]:
        """For a person or a log: the length, the policy and the positions that each ring still holds."""
        held = [[int(p) for p in ring._held if p >= 0] for ring in self.rings]
        return {"length": self.length, "policy": self.policy, "held": held, "dropped": self.dropped}
