"""Calibrated quantization of a whole model: segment by segment, each on the inputs that the quantized model gives it.

The samples go through with the weights that have been quantized so far. Only one segment's weights and statistics are
in memory at a time, and of the samples what the next segment needs, beyond a limit in files: memory does not grow with
their number.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import numpy as np

from edge import payload
from edge.errors import CheckpointError
from edge.graph import TOKENS, Graph
from edge.ops import Weight
from exporters import threads
from exporters.calibration import heads, inner
from exporters.calibration.finished import Finished
from exporters.calibration.parallel import add_moment, ordered
from exporters.calibration.spill import Spill
from exporters.calibration.walk import Segment, cut, run
from exporters.payload_writer import EncodedRows, Job, Plan, encode_rows, jobs
from exporters.quant.method import DEFAULT, Array, Memo, Statistics, find
from exporters.quant.recipe import Choice
from exporters.reference.state import BLOCK, Reader, WeightCache

_MOST_WORKERS = 8
_COUNTED = 4  # samples whose inputs enter a moment at a time


def needed(plans: Mapping[str, Plan]) -> bool:
    """Whether a method of the plans works from statistics."""
    return any(find(method).NEEDS for plan in plans.values() for method in plan.choice.methods)


def settle(graph: Graph, plans: Mapping[str, Plan]) -> dict[str, Plan]:
    """The plans with rounding to nearest where a method needs statistics of what has no input.

    An embedding that is not the head is looked up.
    """
    counted = {weight.name for segment in cut(graph) for weight in segment.matrices}
    found = dict(plans)
    for weight in graph.weights:
        choice = plans[weight.name].choice
        if weight.name not in counted and any(find(method).NEEDS for method in choice.methods):
            methods = tuple(DEFAULT if find(method).NEEDS else method for method in choice.methods)
            told = "" if weight.role == "embed" else f"no statistics are collected of its input; method {DEFAULT} used"
            note = "; ".join(item for item in (choice.note, told) if item)
            found[weight.name] = replace(plans[weight.name], choice=replace(choice, methods=methods, note=note))
    return found


def encode(
    graph: Graph, plans: Mapping[str, Plan], samples: Sequence[Sequence[int]], scratch: Path,
    finished: Path | None = None,
) -> Generator[EncodedRows, None, None]:  # fmt: skip
    """Every weight of the graph as encoded rows for the payload; `scratch` is a folder for values of samples.

    Matrices are kept in the folder `finished` as they are done, and those that it has are not encoded again.
    """
    with (
        threads.single() as single,
        tempfile.TemporaryDirectory(dir=scratch, prefix=".values") as folder,
        ThreadPoolExecutor(min(os.cpu_count() or 1, _MOST_WORKERS) if single else 1) as pool,
    ):
        yield from _Calibrator(graph, plans, samples, Spill(Path(folder)), pool).encode(Finished(finished))


class _Calibrator:
    def __init__(
        self, graph: Graph, plans: Mapping[str, Plan], samples: Sequence[Sequence[int]], spill: Spill,
        pool: ThreadPoolExecutor,
    ) -> None:  # fmt: skip
        self._graph, self._plans, self._samples = graph, dict(plans), samples
        self._spill, self._pool = spill, pool
        self._made: dict[str, Array] = {}  # dequantized weights of ops that the stream has yet to run
        self._weights = {weight.name: weight for weight in graph.weights}
        # The tokens that occur, in order. The samples are places in this list, the embedding is these rows alone.
        self._seen = np.unique(np.concatenate([np.asarray(sample, np.int64) for sample in samples]))

    def encode(self, finished: Finished) -> Iterator[EncodedRows]:
        segments = cut(self._graph)
        counted = {weight.name for segment in segments for weight in segment.matrices}
        first = {op.attrs.weight.name for op in self._graph.ops[:1]}
        for name, weight in self._weights.items():
            if name in first:
                for rows in self._finish(finished, name, [weight], lambda: self._weigh_tied_head(segments, first)):
                    self._keep_seen(rows)
                    yield rows
            elif name not in counted:
                yield from self._encode([weight])
        self._start()
        wanted = [[weight for weight in item.matrices if weight.name not in first] for item in segments]
        last = max((index for index, group in enumerate(wanted) if self._needed(group)), default=-1)
        for index, (segment, group) in enumerate(zip(segments, wanted, strict=True)):
            stages = inner.stages(segment.group[0])
            count = not stages and not finished.has(str(index)) and self._needed(group)
            # Behind the last segment that needs statistics nothing needs the samples.
            moment = self._moment(segment, self._read_made, count=count) if index <= last else None
            for used in {weight.name for op in segment.ops for weight in op.weights}:
                self._made.pop(used, None)
            for number, stage in enumerate(stages):
                name = f"{index}.{number}"
                found = None if finished.has(name) else self._inner_moments(segment, stage)
                yield from self._group(finished, name, stage.weights, found)
            if not stages:
                yield from self._group(finished, str(index), group, moment)

    def _needed(self, weights: Iterable[Weight]) -> bool:
        return needed({weight.name: self._plans[weight.name] for weight in weights})

    def _weighs_heads(self, weights: Iterable[Weight]) -> bool:
        methods = {method for weight in weights for method in self._plans[weight.name].choice.methods}
        return any("heads" in find(method).NEEDS for method in methods)

    def _group(
        self, finished: Finished, name: str, weights: Sequence[Weight],
        statistics: Statistics | tuple[Statistics, ...] | None,
    ) -> Iterator[EncodedRows]:  # fmt: skip
        """Weights with the same input, which stay where the quantized stream reads them."""
        for weight in weights:
            self._plans[weight.name] = replace(self._plans[weight.name], statistics=statistics)
        if isinstance(statistics, Statistics) and statistics.moment is not None and self._weighs_heads(weights):
            partners = heads.moments(self._graph, weights, statistics.moment, self._read_source)
            for matrix, found in partners.items():
                self._plans[matrix] = replace(self._plans[matrix], statistics=replace(statistics, heads=found))
        for rows in self._finish(finished, name, weights):
            self._keep(rows)
            yield rows
        for weight in weights:  # a moment has as many numbers as columns squared
            self._plans[weight.name] = replace(self._plans[weight.name], statistics=None)

    def _inner_moments(self, segment: Segment, stage: inner.Stage) -> tuple[Statistics, ...] | None:
        """The moments of what each matrix of some stacks is multiplied with."""
        if not self._needed(stage.weights):
            return None
        weights = WeightCache(self._read_made, keep=True)
        for weight in self._made:  # read once, before several threads ask for them
            weights.whole(self._weights[weight])
        count, columns = stage.weights[0].shape[0], stage.weights[0].shape[2]
        total = np.zeros((count, columns, columns), np.float32)

        def read(index: int) -> list[Array]:
            values = [self._spill.get((name, index)) for name in segment.group[0].inputs]
            return list(stage.inputs(weights, [np.asarray(value, np.float32) for value in values]))

        for found in ordered(self._pool, read, range(len(self._samples))):
            for member, x in enumerate(found):
                total[member] += x.T @ x
        if not np.isfinite(total).all():
            self._refuse(stage.weights[0])
        tokens = sum(map(len, self._samples))
        total /= np.float32(tokens)
        return tuple(Statistics(tokens, moment=moment, memo=Memo(keep=False)) for moment in total)

    def _finish(
        self, finished: Finished, group: str, weights: Sequence[Weight], prepare: Callable[[], None] = lambda: None
    ) -> Iterator[EncodedRows]:
        """A group of weights as it was encoded before, or else encoded now, after `prepare`, and kept."""
        if finished.has(group):
            yield from finished.read(group, self._jobs(weights))
            return
        prepare()
        encoded = []
        for rows in self._encode(weights):
            if finished.keeps:
                encoded.append(rows)
            yield rows
        finished.write(group, encoded)

    def _weigh_tied_head(self, segments: Sequence[Segment], first: set[str]) -> None:
        """Statistics of an embedding that is the head as well: it is needed first and its inputs are known last.

        So the samples, or a part of them, go through the source's weights before anything else.
        """
        head = segments[-1].matrices[0].name
        if head not in first or not needed({head: self._plans[head]}):
            return
        whole = self._samples
        self._samples = whole[:: max(1, min(4, len(whole) // 8))]
        self._start()
        moment = None
        for segment in segments:
            moment = self._moment(segment, self._read_source, count=segment is segments[-1])
        self._made.clear()
        self._plans[head] = replace(self._plans[head], statistics=moment)
        self._samples = whole
        self._spill.clear()

    def _start(self) -> None:
        for index, sample in enumerate(self._samples):
            self._spill.put((TOKENS, index), np.searchsorted(self._seen, sample))

    def _encode(self, weights: Sequence[Weight]) -> Iterator[EncodedRows]:
        return ordered(self._pool, lambda job: encode_rows(job, self._plans[job.weight.name]), self._jobs(weights))

    def _jobs(self, weights: Sequence[Weight]) -> list[Job]:
        return [job for weight in weights for job in jobs(weight, self._plans[weight.name].choice)]

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

    def _keep_seen(self, rows: EncodedRows) -> None:
        """Put those rows of an embedding that occur where the quantized stream reads them."""
        start, stop = np.searchsorted(self._seen, (rows.job.start, rows.job.stop))
        wanted = self._seen[start:stop] - rows.job.start
        scheme, columns = payload.parse_scheme(rows.job.run.scheme), rows.job.run.shape[1]
        parts = {name: values[wanted] for name, values in rows.parts.items()}
        table = self._made.setdefault(rows.job.weight.name, np.empty((len(self._seen), columns), np.float32))
        table[start:stop] = parts[""] if scheme is None else payload.dequantize(scheme, parts, columns)

    def _moment(self, segment: Segment, read: Reader, *, count: bool = True) -> Statistics | None:
        """Run a segment over all samples; with `count`, the second moment of its group's input."""
        weights = WeightCache(read, keep=True)
        for op in segment.ops:  # read once, before several threads ask for them
            for weight in op.weights:
                weights.whole(weight)

        inputs: list[Array] = []
        total: Array | None = None
        for index, x in enumerate(
            ordered(self._pool, partial(self._advance, segment, weights), range(len(self._samples)))
        ):
            if count:
                inputs.append(x)
            if len(inputs) == _COUNTED or (inputs and index + 1 == len(self._samples)):
                total = add_moment(self._pool, total, np.concatenate(inputs))
                inputs.clear()
        if total is None:
            return None
        if not np.isfinite(total).all():
            self._refuse(segment.matrices[0])
        tokens = sum(map(len, self._samples))
        total /= np.float32(tokens)
        return Statistics(tokens, moment=total)

    def _refuse(self, weight: Weight) -> NoReturn:
        """Raise CheckpointError for inputs that are not finite: it names the tensor that is at fault, if one is."""
        for each in self._graph.weights:
            plan = replace(self._plans[each.name], choice=Choice.of("float32"))
            for job in jobs(each, plan.choice):
                encode_rows(job, plan)
        raise CheckpointError(
            f"the inputs of {weight.name} are not finite on the calibration text: the checkpoint is damaged, or its "
            "training diverged"
        )

    def _advance(self, segment: Segment, weights: WeightCache, index: int) -> Array:
        """Run a segment over one sample; the input of the group's linears."""
        source = segment.group[0].inputs[0]
        values = {name: self._spill.get((name, index)) for name in segment.needs}
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite shows in the moment
            made = run(self._graph, segment, weights, values)
        for name in segment.drops:
            self._spill.drop((name, index))
        for name, found in made.items():
            self._spill.put((name, index), found)
        return np.asarray(made[source] if source in made else values[source])

    def _read_source(self, name: str, start: int, stop: int | None) -> Array:
        if name == self._graph.ops[0].attrs.weight.name and name not in self._made:
            self._made[name] = self._source_rows(self._weights[name])
        return self._made[name][start:stop] if name in self._made else self._plans[name].source.read(start, stop)

    def _source_rows(self, embedding: Weight) -> Array:
        """The rows that occur, of the source."""
        rows, columns = embedding.shape
        step, found = max(1, BLOCK // columns), []
        for first in range(0, rows, step):
            start, stop = np.searchsorted(self._seen, (first, first + step))
            if stop > start:
                block = self._plans[embedding.name].source.read(first, min(first + step, rows))
                found.append(block[self._seen[start:stop] - first])
        return np.concatenate(found)

    def _read_made(self, name: str, start: int, stop: int | None) -> Array:
        """Rows of a weight as the bundle will hold it; what is no linear of this segment is encoded once more."""
        if name not in self._made and self._weights[name].is_matrix:
            for job in jobs(self._weights[name], self._plans[name].choice):
                self._keep(encode_rows(job, self._plans[name]))
        return self._made[name][start:stop] if name in self._made else self._read_source(name, start, stop)
