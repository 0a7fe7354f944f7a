"""Sizes: how many blocks a sequence may take in each pool, and how many bytes a token takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edge.errors import OptionError
from edge.layers import KvSpec

KvDtype = Literal["auto", "float32", "float16", "int8"]
Storage = Literal["memory", "file"]
BLOCK = 64  # slots of a block: four lines of 16 slots, which attention reads at a time
SINK_STEP = 64


@dataclass(frozen=True, slots=True)
class RingLayout:
    """What one sequence may take of one pool.

    window   positions that a query sees, itself included; `sinks` first positions are seen besides
    blocks   of a sequence at most: window, a chunk's slack, and twice the sinks' (as written, and rotated)
    bounded  the window is the model's own, so leaving it drops nothing that the model would have seen
    """

    blocks: int
    window: int
    sinks: int
    bounded: bool

    @property
    def slots(self) -> int:
        return self.blocks * BLOCK

    @property
    def sink_blocks(self) -> int:
        return -(-self.sinks // BLOCK)

    @property
    def window_blocks(self) -> int:
        """Blocks for what lies in the window and the slack."""
        return self.blocks - 2 * self.sink_blocks

    def oldest(self, position: int) -> int:
        """The first position in the window of a query."""
        return max(0, position - self.window + 1)

    def lag(self, position: int) -> int:
        """How far sinks directly before the oldest token that a query sees would have moved; none do below 0."""
        return position + 1 - self.window - self.sinks

    def shift(self, position: int) -> int:
        """How far the sinks stand from where they were written, for a query: `lag` in whole steps."""
        return max(0, self.lag(position)) // SINK_STEP * SINK_STEP if self.sinks else 0


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The rings of a sequence (in the order of `DecoderSpec.kv_groups`), and for how many sequences pools have room.

    context  tokens that the policy promises room for: a query and what it sees are never further apart
    chunk    the most new tokens of a sequence in one forward
    policy   a name of `edge.kv.policies.POLICIES`
    storage  where keys and values lie: in memory, or in a file that the system maps into it
    """

    rings: tuple[RingLayout, ...]
    context: int
    chunk: int
    sequences: int = 1
    policy: str = "error"
    storage: Storage = "memory"


# How numbers are kept: dtype → (bytes of a number, bytes of the scale that each head's key and each value then have).
_STORED = {"float32": (4, 0), "float16": (2, 0), "int8": (1, 2)}


def row_bytes(kv: KvSpec, dtype: str) -> int:
    """Bytes of what a layer keeps of one token. Raises OptionError for a dtype that is none."""
    if dtype not in _STORED:
        raise OptionError(f"kv_dtype is {dtype!r}; it must be one of {', '.join(_STORED)}")
    number, scale = _STORED[dtype]
    return kv.kv_heads * sum(dim * number + scale for dim in (kv.key_dim, kv.value_dim) if dim)
