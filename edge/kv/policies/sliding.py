"""`sliding`: the oldest tokens go, but for the first ones (sinks, arXiv:2309.17453) or a pinned beginning.

Queries see the sinks and as many latest tokens as the context has room for beside them. How sinks are turned on is
`edge.kv.ring`'s.
"""

from __future__ import annotations

from typing import Any

from edge.kv.layout import BLOCK, KvLayout, RingLayout
from edge.kv.policies.policy import Policy, Room, needed


class Sliding(Policy):
    summary = "drop the oldest tokens but the first (see --sinks); of a chat, whole turns but the system prompt"
    sinks = 4
    ends = False
    turns = True

    def ring(self, room: Room) -> RingLayout:
        window = room.context - room.sinks
        return RingLayout(needed(window, room.chunk) + 2 * -(-room.sinks // BLOCK), window, room.sinks, bounded=False)

    def geometry(self, layout: KvLayout) -> dict[str, Any]:
        return {"context": layout.context}  # the window follows from it

    def pin(self, layout: KvLayout, pinned: int) -> tuple[RingLayout, ...]:
        """The pinned tokens are sinks, of which a ring that sees everything has more then, within the same blocks.

        Sinks are kept twice, so that each block of them beyond the first costs the window two. At most three quarters
        of the context go that way: of a longer beginning the first tokens are pinned.
        """
        return tuple(ring if ring.bounded else _pinned(ring, layout.context, pinned) for ring in layout.rings)


def _pinned(ring: RingLayout, context: int, pinned: int) -> RingLayout:
    most = 3 * context // 4
    pinned = min(pinned, most, (ring.sink_blocks + max(0, most - ring.sinks) // (2 * BLOCK)) * BLOCK)
    if pinned <= ring.sinks:
        return ring
    lost = 2 * (-(-pinned // BLOCK) - ring.sink_blocks) * BLOCK
    return RingLayout(ring.blocks, context - max(pinned, ring.sinks + lost), pinned, bounded=False)
