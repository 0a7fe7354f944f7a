"""What a policy says: how much of a pool a sequence may take, and what happens to its tokens when that is full."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edge.kv.blocks import BlockPool
from edge.kv.layout import BLOCK, KvLayout, RingLayout, Storage
from edge.kv.ring import Ring


@dataclass(frozen=True, slots=True)
class Room:
    """What a sequence is to have: room for `context` tokens, of which the first `sinks` stay for ever.

    `chunk` tokens at most come at once; `trained` is the most that the model takes.
    """

    context: int
    sinks: int
    chunk: int
    trained: int


class Policy:
    """The base of policies, which do as `error` does unless they say otherwise.

    summary     what happens when the context is full, for the command line's help
    sinks       first tokens that it keeps for ever by default; 0: it keeps none, and being asked for some is an error
    ends        an answer ends, and a longer prompt is refused, where `context` tokens are in the sequence
    turns       of messages, whole turns go before the context is full (see edge.turns)
    attention   what stays depends on how much attention it got, which the backend has to tell
    storage     where keys and values lie
    """

    summary: str
    sinks: int = 0
    ends: bool = True
    turns: bool = False
    attention: bool = False
    storage: Storage = "memory"

    def context(self, room: Room) -> int:
        """How many tokens it promises room for, whatever it keeps of them (see `KvLayout.context`).

        Raises OptionError for a room that it cannot do with.
        """
        return room.context

    def ring(self, room: Room) -> RingLayout:
        """The ring of layers that see everything. Those with a window of the model's own have `bounded`."""
        blocks = min(needed(room.context, room.chunk), -(-room.context // BLOCK))
        return RingLayout(blocks, room.context, 0, bounded=False)

    def pin(self, layout: KvLayout, pinned: int) -> tuple[RingLayout, ...]:
        """The rings of a sequence whose first `pinned` tokens are wanted as long as it lasts."""
        return layout.rings

    def geometry(self, layout: KvLayout) -> dict[str, Any]:
        """What has to be the same where a saved sequence goes on, by name, besides the policy and sinks."""
        return {}

    def open(self, index: int, layout: RingLayout, pool: BlockPool, owner: int) -> Ring:
        """An empty ring."""
        return Ring(index, layout, pool, owner)


def bounded(window: int, chunk: int, *, most: int | None) -> RingLayout:
    """The ring of layers with a window of the model's own. `most`: tokens that the sequence will ever have."""
    blocks = needed(window, chunk)
    return RingLayout(blocks if most is None else min(blocks, -(-most // BLOCK)), window, 0, bounded=True)


def needed(window: int, chunk: int) -> int:
    """Blocks in which all lies that the queries of a chunk see, from anywhere in a block on."""
    return (window + chunk - 3) // BLOCK + 2
