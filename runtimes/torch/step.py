"""One forward as tensors on the device: which rows there are, where they go, and what their queries see."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from edge import rope
from edge.decoder import DecoderSpec
from edge.kv import KvLayout, RingPlan
from edge.runtime import Segment

Longs = npt.NDArray[np.int64]
Slots = slice | Tensor


@dataclass(frozen=True, slots=True)
class View:
    """What some of the new rows see in one ring: `count` rows from `first` on, of `sequences` that have as many each.

    slots   of each sequence those that it sees, int64 [sequences, length], or of the only one a run of them
    mask    bool [sequences, 1, rows of a sequence, length]; None: each row sees all of them
    """

    first: int
    count: int
    sequences: int
    slots: Slots
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class RingStep:
    """`writes` are the slots of the new rows, int64 [rows]; `runs` the same as (first row, slots), if they are told."""

    writes: Tensor
    views: tuple[View, ...]
    runs: tuple[tuple[int, slice], ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """`tokens` int64 [rows]; `angles` of each rope, cos and sin [rows, 1, dim / 2]; `wanted` rows have logits.

    `fixed`: shapes must depend on nothing but shapes, and nothing may be read back, so that a step can be replayed.
    """

    tokens: Tensor
    angles: tuple[tuple[Tensor, Tensor], ...]
    rings: tuple[RingStep, ...]
    wanted: Tensor
    fixed: bool = False


def visible(positions: Tensor, held: Tensor, window: int, sinks: Tensor | int) -> Tensor:
    """Who sees whom, by `RingPlan`'s rule: positions [..., n] and held [..., length] → bool [..., n, length]."""
    distance = positions[..., :, None] - held[..., None, :]
    held = held[..., None, :]
    return (held >= 0) & (distance >= 0) & ((distance < window) | (held < sinks))


def plan(
    spec: DecoderSpec, layout: KvLayout, segments: Sequence[Segment], device: torch.device, place: torch.device
) -> Step:
    """The step of a batch, with what each segment sees as it lies. `place` is where keys and values are."""
    counts = [len(segment.tokens) for segment in segments]
    positions = np.concatenate([segment.plan.rings[0].positions for segment in segments])
    ends = np.cumsum(counts)
    wanted = [np.arange(end - segment.logit_rows, end) for end, segment in zip(ends, segments, strict=True)]
    rings = []
    for index in range(len(layout.rings)):
        plans = [segment.plan.rings[index] for segment in segments]
        firsts = [int(end) - plan.count for plan, end in zip(plans, ends, strict=True)]
        views = tuple(_view(plan, first, device, place) for plan, first in zip(plans, firsts, strict=True))
        runs = tuple(run for plan, first in zip(plans, firsts, strict=True) for run in _written(plan, first))
        rings.append(RingStep(moved(np.concatenate([plan.writes for plan in plans]), place), views, runs))
    return Step(
        moved(np.concatenate([segment.tokens for segment in segments]).astype(np.int64), device),
        angles(spec, layout.context, positions, device),
        tuple(rings),
        moved(np.concatenate(wanted), device),
    )


def angles(
    spec: DecoderSpec, context: int, positions: Longs, device: torch.device
) -> tuple[tuple[Tensor, Tensor], ...]:
    """cos and sin of each rope at some positions, [rows, 1, dim / 2] each; computed on the host, in float64."""
    found = (rope.angles(kind, positions, context=context) for kind in spec.ropes)
    return tuple((moved(cos[:, None], device), moved(sin[:, None], device)) for cos, sin in found)


def _written(plan: RingPlan, first: int) -> Iterator[tuple[int, slice]]:
    """The runs of slots that the new rows go to, with the first row of each; `first` is that of all."""
    for position, slot, count in plan.runs.tolist():
        skipped = max(0, plan.start - position)
        if skipped < count:
            yield first + position + skipped - plan.start, slice(slot + skipped, slot + count)


def _view(plan: RingPlan, first: int, device: torch.device, place: torch.device) -> View:
    if len(plan.runs) == 1:
        position, slot, count = plan.runs[0].tolist()
        held = np.arange(position, position + count)
        slots: Slots = slice(slot, slot + count)
    else:
        held, unrolled = plan.unrolled()
        slots = moved(unrolled[None], place)
    mask = None
    if plan.count > 1 or not plan.mask(held).all():
        where, what = moved(plan.positions, device), moved(held, device)
        mask = visible(where, what, plan.window, plan.sinks)[None, None]
    return View(first, plan.count, 1, slots, mask)


def moved(values: npt.NDArray[np.generic], device: torch.device) -> Tensor:
    """An array on the device; without waiting for it where the device can fetch it by itself."""
    found = torch.from_numpy(np.ascontiguousarray(values))
    if device.type == "cuda":
        return found.pin_memory().to(device, non_blocking=True)
    return found.to(device)
