"""Calibrated quantization of a whole model: segment by segment, each on the inputs that the quantized model gives it.

The samples go through with the weights that have been quantized so far. Only one segment's weights and statistics are
in memory at a time, and of the samples what the next segment needs, beyond a limit in files: memory does not grow with
their number.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from edge import payload
from edge.graph import TOKENS, Graph
from edge.ops import Weight
from exporters import threads
from exporters.calibration.spill import Spill
from exporters.calibration.walk import Segment, cut, run
from exporters.payload_writer import EncodedRows, Plan, encode_rows, jobs
from exporters.quant.method import DEFAULT, Array, Statistics, find
from exporters.reference.state import Reader, WeightCache

Item = TypeVar("Item")
Result = TypeVar("Result")
_MOST_WORKERS = 8


def needed(plans: Mapping[str, Plan]) -> bool:
    """Whether a method of the plans works from statistics."""
    return any(find(method).NEEDS for plan in plans.values() for method in plan.choice.methods)


def settle(graph: Graph, plans: Mapping[str, Plan]) -> dict[str, Plan]:
    """The plans with rounding to nearest where a method needs statistics of what is no linear's input.

    An embedding that is not the head is looked up: it has no input. Experts and latent attention are not counted yet.
    """
    linear = {op.attrs.weight.name for group in graph.siblings for op in group}
    found = dict(plans)
    for weight in graph.weights:
        choice = plans[weight.name].choice
        if weight.name not in linear and any(find(method).NEEDS for method in choice.methods):
            methods = tuple(DEFAULT if find(method).NEEDS else method for method in choice.methods)
            told = "" if weight.role == "embed" else f"no statistics are collected of its input; method {DEFAULT} used"
            note = "; ".join(item for item in (choice.note, told) if item)
            found[weight.name] = replace(plans[weight.name], choice=replace(choice, methods=methods, note=note))
    return found


def encode(
    graph: Graph, plans: Mapping[str, Plan], samples: Sequence[Sequence[int]], scratch: Path
) -> Generator[EncodedRows, None, None]:
    """Every weight of the graph as encoded rows for the payload; `scratch` is a folder for values of samples."""
    with (
        threads.single() as single,
        tempfile.TemporaryDirectory(dir=scratch, prefix=".values") as folder,
        ThreadPoolExecutor(min(os.cpu_count() or 1, _MOST_WORKERS) if single else 1) as pool,
    ):
        yield from _Calibrator(graph, plans, samples, Spill(Path(folder)), pool).encode()


class _Calibrator:
    def __init__(
        self, graph: Graph, plans: Mapping[str, Plan], samples: Sequence[Sequence[int]], spill: Spill,
        pool: ThreadPoolExecutor,
    ) -> None:  # fmt: skip
        self._graph, self._plans, self._samples = graph, dict(plans), samples
        self._spill, self._pool = spill, pool
        self._made: dict[str, Array] = {}  # dequantized weights of the linears that the next segment begins with
        self._weights = {weight.name: weight for weight in graph.weights}

    def encode(self) -> Iterator[EncodedRows]:
        segments = cut(self._graph)
        linear = {op.attrs.weight.name for segment in segments for op in segment.group}
        first = {op.attrs.weight.name for op in self._graph.ops[:1]}
        self._weigh_tied_head(segments, first)
        for name, weight in self._weights.items():
            if name in first or name not in linear:
                yield from self._encode([weight])
        self._start()
        groups = [[op.attrs.weight for op in item.group if op.attrs.weight.name not in first] for item in segments]
        counted = [needed({weight.name: self._plans[weight.name] for weight in group}) for group in groups]
        last = max((index for index, count in enumerate(counted) if count), default=-1)
        for index, (segment, wanted) in enumerate(zip(segments, groups, strict=True)):
            if index <= last:  # behind it nothing needs the samples
                moment = self._moment(segment, self._read_made, count=counted[index])
                for weight in wanted:
                    self._plans[weight.name] = replace(self._plans[weight.name], statistics=moment)
            self._made.clear()
            for rows in self._encode(wanted):
                self._keep(rows)
                yield rows

    def _weigh_tied_head(self, segments: Sequence[Segment], first: set[str]) -> None:
        """Statistics of an embedding that is the head as well: it is needed first and its inputs are known last.

        So the samples, or a part of them, go through the source's weights before anything else.
        """
        head = segments[-1].group[0].attrs.weight.name
        if head not in first or not needed({head: self._plans[head]}):
            return
        whole = self._samples
        self._samples = whole[:: max(1, min(4, len(whole) // 8))]
        self._start()
        moment = None
        for segment in segments:
            moment = self._moment(segment, self._read_source, count=segment is segments[-1])
        self._plans[head] = replace(self._plans[head], statistics=moment)
        self._samples = whole
        self._spill.clear()

    def _start(self) -> None:
        for index, sample in enumerate(self._samples):
            self._spill.put((TOKENS, index), np.asarray(sample, np.int64))

    def _encode(self, weights: Sequence[Weight]) -> Iterator[EncodedRows]:
        listed = [
            (job, self._plans[weight.name])
            for weight in weights
            for job in jobs(weight, self._plans[weight.name].choice)
        ]
        return self._ordered(lambda item: encode_rows(*item), listed)

    def _keep(self, rows: EncodedRows) -> None:
        """Put some rows' dequantized numbers where the quantized stream reads them."""
        weight, run = rows.job.weight, rows.job.run
        scheme = payload.parse_scheme(run.scheme)
        columns = run.shape[1]
        values = rows.parts[""] if scheme is None else payload.dequantize(scheme, rows.parts, columns)
        whole = self._made.setdefault(weight.name, np.empty(weight.stored, np.float32))
        by_rows = self._plans[weight.name].choice.layout.axis == "rows"
        first = run.start if by_rows else 0
        columns_of_run = slice(None) if by_rows else slice(run.start, run.stop)
        whole[first + rows.job.start : first + rows.job.stop, columns_of_run] = values

    def _moment(self, segment: Segment, read: Reader, *, count: bool = True) -> Statistics | None:
        """Run a segment over all samples; with `count`, the second moment of its group's input."""
        weights = WeightCache(read, keep=True)
        for op in segment.ops:  # read once, before several threads ask for them
            for weight in op.weights:
                weights.whole(weight)

        def advance(index: int) -> Array | None:
            x = self._advance(segment, weights, index)
            return np.asarray(x.T @ x) if count else None

        total, tokens = None, sum(map(len, self._samples))
        for found in self._ordered(advance, range(len(self._samples))):
            if found is not None:
                total = found if total is None else np.add(total, found, out=total)
        return None if total is None else Statistics(tokens, moment=total / np.float32(tokens))

    def _advance(self, segment: Segment, weights: WeightCache, index: int) -> Array:
        """Run a segment over one sample; the input of the group's linears."""
        source = segment.group[0].inputs[0]
        values = {name: self._spill.get((name, index)) for name in segment.needs}
        made = run(self._graph, segment, weights, values)
        for name in segment.drops:
            self._spill.drop((name, index))
        for name, found in made.items():
            self._spill.put((name, index), found)
        return np.asarray(made[source] if source in made else values[source])

    def _read_source(self, name: str, start: int, stop: int | None) -> Array:
        return self._plans[name].source.read(start, stop)

    def _read_made(self, name: str, start: int, stop: int | None) -> Array:
        """Rows of a weight as the bundle will hold it; what is no linear of this segment is encoded once more."""
        if name not in self._made and self._weights[name].is_matrix:
            for job in jobs(self._weights[name], self._plans[name].choice):
                self._keep(encode_rows(job, self._plans[name]))
        return self._made[name][start:stop] if name in self._made else self._read_source(name, start, stop)

    def _ordered(self, call: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """Results in order, a few being worked on at a time."""
        ahead: list[Future[Result]] = []
        try:
            for item in items:
                ahead.append(self._pool.submit(call, item))
                if len(ahead) > _MOST_WORKERS:
                    yield ahead.pop(0).result()
            while ahead:
                yield ahead.pop(0).result()
        finally:  # an interrupt waits for what runs, not for what was to come
            for future in ahead:
                future.cancel()
