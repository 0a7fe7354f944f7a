"""Keys and values in the host's memory, for models that fill the device: a layer's rows are there while it is computed.

What a forward will read is known when it begins. While a layer computes, the rows of the next one come to the device on
a side stream; new rows go back on the same stream. The host's memory is pinned for that, as CUDA wants it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from edge.kv import Move
from edge.runtime import KvRows
from runtimes.torch.kv import Pool, seen_by
from runtimes.torch.step import RingStep, Step, View

Fetched = list[tuple[Tensor, Tensor | None]]


@dataclass(frozen=True, slots=True)
class _Coming:
    """Rows of a layer on their way to the device: of each view keys and values, there once `event` is."""

    layer: int
    rows: Fetched
    event: Any


class HostPool(Pool):
    """See `Pool`; slots of `RingStep` are the host's here."""

    def _place(self) -> torch.device:
        self._side: Any = None
        if self.device.type == "cuda":
            self._side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._rings: tuple[RingStep, ...] = ()
        self._coming: _Coming | None = None
        return torch.device("cpu")

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        found = torch.empty(shape, dtype=dtype, pin_memory=self.device.type == "cuda")
        found[-2:] = 0
        return found

    def begin(self, step: Step) -> None:
        self._settled()  # rows that are picked one by one are picked by the host
        self._rings = step.rings
        self._coming = self._fetch(0)

    def _fetch(self, layer: int) -> _Coming | None:
        """Have a layer's rows come; None behind the last one."""
        if layer == len(self.keys):
            return None
        ring, stored = self._rings[self._spec.layer_groups[layer]], self._values[layer]
        rows: Fetched = []
        with self._beside():
            for view in ring.views:
                keys = self._to_device(seen_by(self.keys[layer], view))
                rows.append((keys, None if stored is None else self._to_device(seen_by(stored, view))))
            event = None if self._side is None else self._side.record_event()
        return _Coming(layer, rows, event)

    def _beside(self) -> Any:
        return contextlib.nullcontext() if self._side is None else torch.cuda.stream(self._side)

    def _to_device(self, rows: Tensor) -> Tensor:
        """A copy that may be written to."""
        if self._side is None:
            return rows.to(self.device, copy=True)
        return rows.pin_memory().to(self.device, non_blocking=True)

    def exchange(
        self, layer: int, ring: RingStep, keys: Tensor, values: Tensor | None
    ) -> Iterator[tuple[View, Tensor, Tensor]]:
        coming = self._coming
        assert coming is not None
        assert coming.layer == layer, "layers are computed in order"
        if self._side is not None:
            torch.cuda.current_stream().wait_event(coming.event)
        dtype = self.keys[layer].dtype
        keys = keys.to(dtype)
        values = None if values is None else values.to(dtype)
        self._put_back(layer, ring, keys, values)
        self._coming = self._fetch(layer + 1)
        for view, (seen, stored) in zip(ring.views, coming.rows, strict=True):
            new = slice(view.first, view.first + view.count)
            for rows, added in ((seen, keys), (stored, values)):
                if rows is not None:
                    assert added is not None
                    rows[:, -view.count :] = added[new]  # rows come by position, so the new ones are the last
                    if self._side is not None:
                        rows.record_stream(torch.cuda.current_stream())
            yield view, seen, self._inside(layer, seen) if stored is None else stored

    def _put_back(self, layer: int, ring: RingStep, keys: Tensor, values: Tensor | None) -> None:
        """Write new rows to the host, run by run."""
        if self._side is not None:
            self._side.wait_stream(torch.cuda.current_stream())
        with self._beside():
            for first, slots in ring.runs:
                rows = slice(first, first + slots.stop - slots.start)
                for pool, added in ((self.keys[layer], keys), (self._values[layer], values)):
                    if pool is not None:
                        assert added is not None
                        pool[slots].copy_(added[rows], non_blocking=True)
                        if self._side is not None:
                            added.record_stream(self._side)

    def _settled(self) -> None:
        """Wait until all rows have arrived."""
        if self._side is not None:
            self._side.synchronize()

    def move(self, move: Move) -> None:
        self._settled()
        super().move(move)

    def rows(self, layer: int, slots: npt.NDArray[np.int64]) -> KvRows:
        self._settled()
        return super().rows(layer, slots)

    def put(self, layer: int, slots: npt.NDArray[np.int64], rows: KvRows) -> None:
        self._settled()
        super().put(layer, slots, rows)
