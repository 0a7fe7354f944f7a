"""Keys and values: pools of slots on the device, or in the host's memory for models that fill the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from edge.decoder import DecoderSpec
from edge.kv import KvLayout, Move
from edge.layers import Attention, Gqa, Mla
from edge.rope import rotations
from edge.runtime import KvRows
from runtimes.torch.step import RingStep, Step, View


@dataclass(frozen=True, slots=True)
class Kept:
    """What a layer keeps of a token: a key and a value for each of `heads`.

    Latent attention keeps its rotated key and then its latent as the key of one head, of which the latent is the value
    too; `key` and `value` are the numbers of each, and `shared` is where a value begins within its key.
    """

    heads: int
    key: int
    value: int
    shared: int | None
    rope: int | None

    @classmethod
    def of(cls, attention: Attention) -> Kept:
        if isinstance(attention, Gqa):
            return cls(attention.kv_heads, attention.head_dim, attention.head_dim, None, attention.rope)
        assert isinstance(attention, Mla)
        dim = attention.rope_dim
        return cls(1, dim + attention.latent_dim, attention.latent_dim, dim, attention.rope)


class Pool:
    """The slots of all layers. Behind those of its ring each layer has two more: one of zeros, from `scratch` on, that
    stands for rows that nobody has, and one for rows that nobody keeps.

    keys     [slots + 2, heads, key]     after rope
    values   [slots + 2, heads, value]   None where they are a part of the keys
    """

    def __init__(
        self, spec: DecoderSpec, layout: KvLayout, dtypes: tuple[torch.dtype, ...], device: torch.device
    ) -> None:
        self._spec, self._layout = spec, layout
        self.device = device
        self.place = self._place()
        self.kept = [Kept.of(layer.attention) for layer in spec.layers]
        self.scratch = [ring.slots * layout.sequences for ring in layout.rings]
        self.keys: list[Tensor] = []
        self._values: list[Tensor | None] = []
        for kept, group, dtype in zip(self.kept, spec.layer_groups, dtypes, strict=True):
            slots = self.scratch[group] + 2
            self.keys.append(self._empty((slots, kept.heads, kept.key), dtype))
            shared = kept.shared is not None
            self._values.append(None if shared else self._empty((slots, kept.heads, kept.value), dtype))

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """On the CPU the system commits the memory as it is touched."""
        found = torch.empty(shape, dtype=dtype, device=self.place)
        found[-2:] = 0
        return found

    def _place(self) -> torch.device:
        """Where the slots are."""
        return self.device

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (*self.keys, *self._values) if tensor is not None)

    def values(self, layer: int) -> Tensor:
        found = self._values[layer]
        return self._inside(layer, self.keys[layer]) if found is None else found

    def begin(self, step: Step) -> None:
        """A step is about to run."""

    def exchange(
        self, layer: int, ring: RingStep, keys: Tensor, values: Tensor | None
    ) -> Iterator[tuple[View, Tensor, Tensor]]:
        """Keep new rows, keys [n, heads, key] and values alike; then of each view keys and values, on the device.

        Both are [sequences, length, heads, …], and read in place where a sequence lies in one run.
        """
        self._write(layer, ring.writes, keys, values)
        for view in ring.views:
            found, stored = self.keys[layer], self._values[layer]
            seen = seen_by(found, view)
            yield view, seen, self._inside(layer, seen) if stored is None else seen_by(stored, view)

    def _inside(self, layer: int, keys: Tensor) -> Tensor:
        """The values that are a part of keys."""
        return keys[..., self.kept[layer].shared :]

    def _write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor | None) -> None:
        self.keys[layer].index_copy_(0, slots, keys.to(self.keys[layer].dtype))
        stored = self._values[layer]
        if stored is not None:
            assert values is not None
            stored.index_copy_(0, slots, values.to(stored.dtype))

    def move(self, move: Move) -> None:
        """Copy rows of a ring's layers, and rotate their keys on."""
        source = slice(move.source, move.source + move.count)
        target = slice(move.target, move.target + move.count)
        for layer, group in enumerate(self._spec.layer_groups):
            if group != move.ring:
                continue
            keys, values = self.keys[layer][source].clone(), self._values[layer]
            if move.shift and (index := self.kept[layer].rope) is not None:
                rope = self._spec.ropes[index]
                cos, sin = rotations(rope, np.array([move.shift], np.int64), context=self._layout.context)
                keys[..., : rope.dim] = rotated(keys[..., : rope.dim], *(self._angle(angle) for angle in (cos, sin)))
            self.keys[layer][target] = keys
            if values is not None:
                values[target] = values[source].clone()

    def _angle(self, angle: npt.NDArray[np.float32]) -> Tensor:
        return torch.from_numpy(angle).to(self.keys[0].device)

    def rows(self, layer: int, slots: npt.NDArray[np.int64]) -> KvRows:
        """What a layer keeps in some slots, in the layout of `edge.runtime`: of a latent its key first."""
        index = torch.from_numpy(slots).to(self.keys[layer].device)
        keys, values = self.keys[layer][index], self.values(layer)[index]
        keys = keys[..., : self.kept[layer].shared]
        return KvRows(*(part.float().cpu().contiguous().numpy() for part in (keys, values)))

    def put(self, layer: int, slots: npt.NDArray[np.int64], rows: KvRows) -> None:
        """The inverse of `rows`."""
        index = torch.from_numpy(slots).to(self.keys[layer].device)
        keys, values = (torch.from_numpy(np.array(part, np.float32)) for part in (rows.keys, rows.values))
        keys, values = keys.to(index.device), values.to(index.device)
        if self.kept[layer].shared is not None:
            keys = torch.cat([keys, values], dim=-1)
        self._write(layer, index, keys, values)


def seen_by(slots: Tensor, view: View) -> Tensor:
    """What a view sees of some slots, [sequences, length, heads, dim]."""
    return slots[view.slots][None] if isinstance(view.slots, slice) else slots[view.slots]


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [..., dim] rotated: number i with number i + dim/2; cos and sin [..., dim/2] in float32."""
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
