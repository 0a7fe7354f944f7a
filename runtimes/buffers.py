"""Storage for keys and values: one preallocated pool, committed by the system as it is touched."""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edge import rope
from edge.decoder import DecoderSpec
from edge.kv import KvLayout

Array = npt.NDArray[np.float32]
_ALIGNMENT = 64


class KvPool:
    """Keys and values of every sequence, float32.

    `rings[i]` is [sequences, layers of ring i, 2, kv_heads, rows, head_dim]. A ring has `slots` rows and then `chunk`
    scratch rows, where a forward may put new rows before they are stored. Index 0 of the third axis is keys (after
    rope), 1 values. `layers[n]` tells where layer n is: (ring, index in it).
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
            self._map = mmap.mmap(-1, self.nbytes)
        except (OSError, OverflowError) as error:
            raise MemoryError(f"{self.nbytes} bytes of keys and values") from error
        starts = np.cumsum([0, *sizes])
        self.rings: list[Array] = [
            np.frombuffer(self._map, np.float32, math.prod(shape), offset=int(start)).reshape(shape)
            for shape, start in zip(shapes, starts, strict=False)
        ]
        self._sinks: dict[tuple[int, int], Array] = {}

    def store(self, sequence: int, ring: int, indices: npt.NDArray[np.int32], scratch: int) -> None:
        """Move new rows from `scratch` on into their slots; rows that are already there stay."""
        pool = self.rings[ring][sequence]
        if indices[0] != scratch or indices[-1] != scratch + len(indices) - 1:
            pool[..., indices, :] = pool[..., scratch : scratch + len(indices), :].copy()
        sinks = self._layout.rings[ring].sinks
        if sinks and indices[0] < sinks:
            shape = (pool.shape[0], pool.shape[2], sinks, pool.shape[4])
            written = self._sinks.setdefault((sequence, ring), np.zeros(shape, np.float32))
            fresh = slice(int(indices[0]), min(sinks, int(indices[0]) + len(indices)))
            written[:, :, fresh] = pool[:, 0, :, fresh]

    def copy_slots(self, source: int, target: int, filled: Sequence[int]) -> None:
        for ring, (pool, count) in enumerate(zip(self.rings, filled, strict=True)):
            pool[target, ..., :count, :] = pool[source, ..., :count, :]
            if (source, ring) in self._sinks:
                self._sinks[target, ring] = self._sinks[source, ring].copy()

    def rotate_sinks(self, sequence: int, ring: int, shift: int) -> None:
        """Rotate the sink keys by `shift` positions, from the copy taken when they were stored: no error adds up."""
        written = self._sinks[sequence, ring]
        pool = self.rings[ring][sequence]
        for index, layer in enumerate(self._members[ring]):
            kind = self._spec.layers[layer].attention.rope
            if kind is None:
                continue
            spec = self._spec.ropes[kind]
            cos, sin = rope.rotations(spec, np.array([shift], np.int64), context=self._layout.context)
            half = spec.dim // 2
            a, b = written[index, ..., :half], written[index, ..., half : spec.dim]
            target = pool[index, 0, :, : written.shape[2]]
            target[..., :half] = a * cos - b * sin
            target[..., half : spec.dim] = b * cos + a * sin

    def close(self) -> None:
        """Give the memory back. The views must not be used afterwards."""
        self.rings.clear()
        self._sinks.clear()
        # A view that is still held somewhere keeps the map; it goes with the last of them.
        with contextlib.suppress(BufferError):
            self._map.close()
