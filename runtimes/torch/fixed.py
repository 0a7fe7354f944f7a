"""Decoding in steps of equal shapes: a token for each of some sequences, in buffers that stay where they are.

A batch is padded to a power of two of sequences, and what each sees to a power of two of slots, so that there are few
shapes. On CUDA each shape is captured once as a graph and then replayed: a step is two copies to the device and one
launch. What is padded reads a slot of zeros that no query sees, and writes to one that nobody reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from edge import rope
from edge.decoder import DecoderSpec
from edge.kv import BLOCK, KvLayout
from edge.runtime import Segment
from runtimes.torch.step import RingStep, Step, View, moved

Run = Callable[[Step], Tensor]


@dataclass(frozen=True, slots=True)
class _Shape:
    """`sequences` of a batch, and for each ring the slots that each of them sees."""

    sequences: int
    lengths: tuple[int, ...]


class Decoder:
    """Steps of single tokens. `scratch` is the slot of zeros of each ring; the one behind it takes padded rows."""

    def __init__(
        self, run: Run, spec: DecoderSpec, layout: KvLayout, scratch: Sequence[int], device: torch.device
    ) -> None:
        self._run, self._spec, self._layout = run, spec, layout
        self._scratch, self._device = scratch, device
        self._shapes: dict[_Shape, _Inputs] = {}
        self._memory: Any = None  # that all graphs share

    @staticmethod
    def takes(segments: Sequence[Segment]) -> bool:
        return all(len(segment.tokens) == 1 == segment.logit_rows for segment in segments)

    def run(self, segments: Sequence[Segment]) -> Tensor:
        """Logits of each segment, [segments, vocab]: true until the next run."""
        held = [[segment.plan.rings[i].unrolled() for segment in segments] for i in range(len(self._layout.rings))]
        shape = self._shape(segments, held)
        inputs = self._shapes.get(shape)
        if inputs is None:
            inputs = self._shapes[shape] = _Inputs(shape, self._spec, self._device)
        inputs.fill(*self._numbers(segments, held, shape))
        if inputs.replay is None:
            inputs.replay = self._captured(inputs)
        return inputs.replay()[: len(segments)]

    def _shape(self, segments: Sequence[Segment], held: Any) -> _Shape:
        lengths = (
            min(_power(max(len(positions) for positions, _ in ring), BLOCK), layout.slots)
            for ring, layout in zip(held, self._layout.rings, strict=True)
        )
        return _Shape(_power(len(segments), 1), tuple(lengths))

    def _numbers(
        self, segments: Sequence[Segment], held: Any, shape: _Shape
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """What the buffers hold: all integers, and all angles (see `_Inputs`)."""
        count, real = shape.sequences, len(segments)
        tokens, positions = np.zeros(count, np.int64), np.zeros(count, np.int64)
        tokens[:real] = [segment.tokens[0] for segment in segments]
        positions[:real] = [segment.plan.start for segment in segments]
        parts = [tokens, positions]
        for ring, length, scratch in zip(held, shape.lengths, self._scratch, strict=True):
            slots, where = np.full((count, length), scratch, np.int64), np.full((count, length), -1, np.int64)
            writes = np.full(count, scratch + 1, np.int64)
            where[real:, 0] = 0  # so that each query sees something
            for row, (seen, found) in enumerate(ring):
                slots[row, : len(found)], where[row, : len(seen)], writes[row] = found, seen, found[-1]
            parts += [writes, slots.ravel(), where.ravel()]
        angles = [rope.angles(kind, positions, context=self._layout.context) for kind in self._spec.ropes]
        empty = np.empty(0, np.float32)
        return np.concatenate(parts), np.concatenate([empty, *(part.ravel() for pair in angles for part in pair)])

    def _captured(self, inputs: _Inputs) -> Callable[[], Tensor]:
        """The step as something to be called again and again."""

        def run() -> Tensor:
            return self._run(inputs.step())

        if self._device.type != "cuda":
            return run
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run()  # whatever is set up at first use must not be part of the graph
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory):
            found = run()
        self._memory = graph.pool()

        def replay() -> Tensor:
            graph.replay()
            return found

        return replay

    def forget(self) -> None:
        """Give up all shapes, and the memory of their graphs."""
        self._shapes.clear()
        self._memory = None


class _Inputs:
    """The buffers of one shape: integers (tokens, positions, and of each ring writes, slots and positions), angles."""

    def __init__(self, shape: _Shape, spec: DecoderSpec, device: torch.device) -> None:
        self.shape, self._device = shape, device
        self._pairs = [kind.dim // 2 for kind in spec.ropes]
        count = shape.sequences
        self._integers = torch.zeros(
            count * (2 + sum(1 + 2 * n for n in shape.lengths)), dtype=torch.int64, device=device
        )
        self._angles = torch.zeros(count * 2 * sum(self._pairs), device=device)
        self.replay: Callable[[], Tensor] | None = None

    def fill(self, integers: npt.NDArray[np.int64], angles: npt.NDArray[np.float32]) -> None:
        for buffer, values in ((self._integers, integers), (self._angles, angles)):
            buffer.copy_(moved(values, self._device))

    def step(self) -> Step:
        """The step of what is in these buffers. Its masks are computed here, so that a replayed one has its own."""
        count = self.shape.sequences
        sizes = [count, count, *(size for n in self.shape.lengths for size in (count, count * n, count * n))]
        tokens, _, *others = torch.split(self._integers, sizes)
        rings = []
        for index, length in enumerate(self.shape.lengths):
            writes, slots, held = others[3 * index : 3 * index + 3]
            mask = (held >= 0).view(count, 1, 1, length)  # a lone query sees all that its plan names
            rings.append(RingStep(writes, (View(0, count, count, slots.view(count, length), mask),)))
        halves = torch.split(self._angles, [count * n for n in self._pairs for _ in range(2)])
        pairs = (
            (cos.view(count, 1, -1), sin.view(count, 1, -1)) for cos, sin in zip(halves[::2], halves[1::2], strict=True)
        )
        return Step(tokens, tuple(pairs), tuple(rings), torch.arange(count, device=self._device), fixed=True)


def _power(count: int, least: int) -> int:
    """The first power of two from `least` on that is as much."""
    return least << max(0, -(-count // least) - 1).bit_length()
