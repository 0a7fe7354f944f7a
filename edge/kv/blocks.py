"""Pools of blocks with counted references, and tables of the blocks that hold consecutive positions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from edge.errors import PoolFullError
from edge.kv.layout import BLOCK

NONE = -1


class BlockPool:
    """The blocks of one pool: how often each is referred to, and which is taken next.

    Blocks of a sequence are taken one behind another where possible, since long runs of slots are read fastest. A new
    sequence begins in the middle of the largest gap, so that the one before it has room to grow. With `extent`, each
    sequence has that many blocks to itself and takes them in order.
    """

    def __init__(self, blocks: int, *, extent: int | None = None) -> None:
        self.blocks = blocks
        self.free = blocks
        self.peak = 0  # the most that were ever in use: the system has given them memory
        self._extent = extent
        self._counts = [0] * blocks

    def take(self, after: int, owner: int) -> int:
        """A free block, with one reference: the one behind `after` where that is free. `owner`: whose extent.

        Raises PoolFullError where there is none.
        """
        within = range(self.blocks)
        if self._extent is not None:
            within = range(owner * self._extent, (owner + 1) * self._extent)
        block = after + 1
        if after == NONE or block not in within or self._counts[block]:
            block = self._gap(within, spread=self._extent is None)
        self._counts[block] = 1
        self.free -= 1
        self.peak = max(self.peak, self.blocks - self.free)
        return block

    def _gap(self, within: range, *, spread: bool) -> int:
        counts = np.array(self._counts[within.start : within.stop])
        edges = np.flatnonzero(np.diff(np.concatenate([[1], counts, [1]]) == 0))
        if not len(edges):
            raise PoolFullError(f"all {len(within)} blocks of keys and values are in use")
        sizes = edges[1::2] - edges[::2]
        widest = int(sizes.argmax())
        first, size = int(edges[2 * widest]), int(sizes[widest])
        return within.start + first + (size // 2 if spread and first else 0)

    def share(self, block: int) -> None:
        self._counts[block] += 1

    def is_shared(self, block: int) -> bool:
        return self._counts[block] > 1

    def recount(self, blocks: Iterable[int]) -> None:
        """Let the references be these."""
        self._counts = [0] * self.blocks
        for block in blocks:
            self._counts[block] += 1
        self.free = self._counts.count(0)

    def release(self, block: int) -> None:
        assert self._counts[block] > 0
        self._counts[block] -= 1
        self.free += not self._counts[block]


class Table:
    """Blocks of a pool for block `first` of a sequence's positions (first * BLOCK …) and those that follow.

    Kept as runs of neighbours, so that nothing here costs more than the runs there are.
    """

    def __init__(self, first: int = 0) -> None:
        self.first = self.end = first
        self._runs: list[list[int]] = []  # [block, count]

    def __len__(self) -> int:
        return self.end - self.first

    def __iter__(self) -> Iterator[int]:
        for block, count in self._runs:
            yield from range(block, block + count)

    @property
    def last(self) -> int:
        """The last block, NONE: there is none."""
        return self._runs[-1][0] + self._runs[-1][1] - 1 if self._runs else NONE

    def append(self, block: int) -> None:
        if self._runs and self.last + 1 == block:
            self._runs[-1][1] += 1
        else:
            self._runs.append([block, 1])
        self.end += 1

    def pop(self) -> int:
        """Take the last block out."""
        block = self.last
        self.end -= 1
        self._runs[-1][1] -= 1
        if not self._runs[-1][1]:
            self._runs.pop()
        return block

    def drop(self) -> int:
        """Take the first block out."""
        run = self._runs[0]
        block = run[0]
        self.first += 1
        run[0] += 1
        run[1] -= 1
        if not run[1]:
            del self._runs[0]
        return block

    def runs(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Where positions start … stop - 1 lie: (position, slot, count) each, ascending."""
        found = []
        at = self.first * BLOCK
        for block, count in self._runs:
            end = at + count * BLOCK
            low, high = max(at, start), min(end, stop)
            if low < high:
                found.append((low, block * BLOCK + low - at, high - low))
            at = end
        return found

    def copy(self) -> Table:
        other = Table(self.first)
        other.end = self.end
        other._runs = [list(run) for run in self._runs]
        return other
