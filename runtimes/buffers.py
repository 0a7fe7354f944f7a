"""Storage for keys and values: one preallocated pool, committed by the system as it is touched."""

from __future__ import annotations

import contextlib
import math
import mmap
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from edge import rope
from edge.decoder import DecoderSpec, RopeSpec
from edge.kv import KvLayout, Move, Storage
from runtimes import spilled

Array = npt.NDArray[np.float32]
_ALIGNMENT = 64


def _reserve(count: int, storage: Storage) -> mmap.mmap:
    """Memory that does not count before it is touched, where the system can do that. Raises OSError, OverflowError."""
    if storage == "file":
        with spilled.unnamed_file() as file:
            spilled.take_space(file, count)
            return mmap.mmap(file.fileno(), count)
    if sys.platform != "linux":
        return mmap.mmap(-1, count)
    no_reserve = 0x4000  # MAP_NORESERVE, which the module has from Python 3.13 on
    return mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve)


class KvPool:
    """Keys and values of every sequence, float32.

    `rings[i]` is [sequences, layers of ring i, 2, kv_heads, rows, head_dim]. An extent has `slots` rows and then
    `chunk` scratch rows, where a forward may put new rows that belong elsewhere. Index 0 of the third axis is
    keys (after rope), 1 values. `layers[n]` tells where layer n is: (ring, index in it).
    Raises MemoryError for more than the system gives.
    """

    def __init__(self, spec: DecoderSpec, layout: KvLayout) -> None:
        self._spec = spec
        self._layout = layout
        members: list[list[int]] = [[] for _ in layout.rings]
        self.layers: list[tuple[int, int]] = []
        for index, ring in enumerate(spec.layer_groups):
            self.layers.append((ring, len(members[ring])))
            members[ring].append(index)
        self._members = members
        shapes = [
            (layout.sequences, len(member), 2, kv.kv_heads, ring.slots + layout.chunk, kv.key_dim)
            for member, ring, kv in zip(members, layout.rings, spec.kv_groups, strict=True)
        ]
        sizes = [-(-math.prod(shape) * 4 // _ALIGNMENT) * _ALIGNMENT for shape in shapes]
        self.nbytes = sum(sizes)
        try:
            self._map = _reserve(self.nbytes, layout.storage)
        except (OSError, OverflowError) as error:
            raise MemoryError(f"{self.nbytes} bytes of keys and values") from error
        starts = np.cumsum([0, *sizes])
        self.rings: list[Array] = [
            np.frombuffer(self._map, np.float32, math.prod(shape), offset=int(start)).reshape(shape)
            for shape, start in zip(shapes, starts, strict=False)
        ]

    def store(self, ring: int, slots: npt.NDArray[np.int64], sequence: int, first: int) -> None:
        """Move the new rows of a sequence, from row `first` of its extent on, into their slots."""
        rows = slots - sequence * self._layout.rings[ring].slots
        if rows[0] != first or rows[-1] != first + len(rows) - 1:
            pool = self.rings[ring][sequence]
            pool[..., rows, :] = pool[..., first : first + len(rows), :].copy()

    def move(self, move: Move) -> None:
        """Copy rows between slots, and rotate their keys on."""
        each = self._layout.rings[move.ring].slots
        (source, first), (target, to) = divmod(move.source, each), divmod(move.target, each)
        pool = self.rings[move.ring]
        rows = pool[source, ..., first : first + move.count, :].copy()
        if move.shift:
            self._rotate(rows, move)
        pool[target, ..., to : to + move.count, :] = rows

    def rows(self, layer: int, slots: npt.NDArray[np.int64]) -> tuple[Array, Array]:
        """Keys and values of a layer in some slots, [slots, kv_heads, head_dim] each."""
        ring, index = self.layers[layer]
        sequence, row = np.divmod(slots, self._layout.rings[ring].slots)
        keys, values = (self.rings[ring][sequence, index, part, :, row] for part in (0, 1))
        return keys, values

    def put(self, layer: int, slots: npt.NDArray[np.int64], keys: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
        """The inverse of `rows`."""
        ring, index = self.layers[layer]
        sequence, row = np.divmod(slots, self._layout.rings[ring].slots)
        for part, rows in enumerate((keys, values)):
            self.rings[ring][sequence, index, part, :, row] = rows

    def _rotate(self, rows: Array, move: Move) -> None:
        """Rotate keys in place; rows [layers, 2, kv_heads, count, head_dim]."""
        for index, layer in enumerate(self._members[move.ring]):
            kind = self._spec.layers[layer].attention.rope
            if kind is not None:
                rotate(rows[index, 0], self._spec.ropes[kind], move.shift, self._layout.context)

    def close(self) -> None:
        """Give the memory back. The views must not be used afterwards."""
        self.rings.clear()
        # A view that is still held somewhere keeps the map; it goes with the last of them.
        with contextlib.suppress(BufferError):
            self._map.close()


def rotate(keys: npt.NDArray[Any], spec: RopeSpec, shift: int, context: int) -> None:
    """Rotate the first `spec.dim` numbers of keys [..., head_dim] on by `shift` positions, in place."""
    cos, sin = rope.rotations(spec, np.array([shift], np.int64), context=context)
    half = spec.dim // 2
    a, b = keys[..., :half].copy(), keys[..., half : spec.dim].copy()
    keys[..., :half] = a * cos - b * sin
    keys[..., half : spec.dim] = b * cos + a * sin
