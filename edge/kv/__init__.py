"""Bookkeeping of keys and values: which position each slot holds, and who sees whom. numpy only, no tensors.

Layers that keep their tokens alike (`edge.layers.KvSpec`) share a pool of blocks (`blocks`). A sequence has a ring of
blocks in each pool (`ring`), and `cache` plans steps over all rings of a sequence. What happens when one is full is for
`policies` to say.
"""

from edge.kv.cache import Cache, Pools, StepPlan
from edge.kv.layout import (
    BLOCK,
    SINK_STEP,
    KvDtype,
    KvLayout,
    RingLayout,
    Storage,
    row_bytes,
)
from edge.kv.planning import plan_layout
from edge.kv.ring import Move, RingPlan

__all__ = [
    "BLOCK",
    "SINK_STEP",
    "Cache",
    "KvDtype",
    "KvLayout",
    "Move",
    "Pools",
    "RingLayout",
    "RingPlan",
    "StepPlan",
    "Storage",
    "plan_layout",
    "row_bytes",
]
