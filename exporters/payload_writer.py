"""Writing `weights.safetensors` as a stream: some rows at a time, never a whole model, seldom a whole tensor.

Weights that read the same input (q, k and v; gate and up) have like parts next to each other, so that a backend can see
them as one matrix over the very same bytes.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from edge import payload
from edge.errors import CheckpointError, StorageError
from edge.graph import Graph
from edge.ops import Weight
from edge.payload import Run
from edge.safetensors import PADDING, TensorInfo, plan_header
from edge.weights import describe
from exporters.checkpoint import SourceTensor
from exporters.quant.method import Array, Parts, Statistics, check_statistics, find
from exporters.quant.recipe import Choice

_ENCODED_NUMBERS = 1 << 21  # numbers quantized at a time: 8 MiB as float32
_WORKERS = 2
_LARGEST_FLOAT, _LARGEST_HALF = float(np.finfo(np.float32).max), 65504.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What is known of a weight before it is quantized."""

    source: SourceTensor
    choice: Choice
    statistics: Statistics | tuple[Statistics, ...] | None = None  # several: one for each matrix of a stack


@dataclass(frozen=True, slots=True)
class Job:
    """What is encoded at a time: rows start…stop of a run, counted from the run's first row."""

    weight: Weight
    run: Run
    method: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """What became of a job. `zero`: the source has nothing but zeros there."""

    job: Job
    parts: Parts
    zero: bool


def write_weights(
    path: Path,
    graph: Graph,
    plans: Mapping[str, Plan],
    progress: Callable[[float], None],
    encoded: Iterable[EncodedRows] | None = None,
) -> tuple[str, ...]:
    """Quantize or carry every weight of the graph and write it; the matrices that are nothing but zeros.

    `progress` gets the share that is done. `encoded` is all weights already encoded, in any order; by default they are
    encoded here, by methods that need no more than the plans hold.

    Raises StorageError when the space is lacking, before the first row where the system can reserve it, OptionError
    for statistics that a method lacks, and CheckpointError for a tensor with numbers that are not finite, or too large
    for the float16 that its scheme needs.
    """
    if encoded is None:
        for name, plan in plans.items():
            for method in plan.choice.methods:
                check_statistics(method, name, plan.statistics)
        encoded = _encode_all(graph, plans)
    tensors = [entry for group in file_order(graph) for entry in _interleave(group, plans)]
    header, infos = plan_header(tensors)
    size = max(info.stop for info in infos.values())
    total = sum(info.stop - info.start for name, info in infos.items() if not name.startswith(PADDING))
    done = 0
    zeros = {weight.name: True for weight in graph.weights if weight.is_matrix}
    try:
        with open(path, "wb") as file:
            _reserve(file.fileno(), size)
            file.write(header)
            for rows in encoded:
                for part, values in rows.parts.items():
                    info = infos[f"{rows.job.run.name}.{part}" if part else rows.job.run.name]
                    done += _write_rows(file, info, rows.job.start, values)
                if not rows.zero:
                    zeros[rows.job.weight.name] = False
                progress(done / total)
            assert done == total, f"wrote {done} of {total} payload bytes"
    except OSError as error:
        raise storage_error(error, path, size) from error
    return tuple(weight.name for weight in graph.weights if zeros.get(weight.name))


def storage_error(error: OSError, path: Path, needed: int) -> StorageError:
    """An OSError as one line that names the path and, where the space is lacking, how much is known to be needed."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StorageError(f"{path}: the file system has no room for it; at least {needed} bytes are needed there")
    return StorageError(f"{path}: cannot be written: {error.strerror}")


def file_order(graph: Graph) -> list[tuple[Weight, ...]]:
    """All weights in file order; those whose parts are interleaved stand in one tuple."""
    groups: dict[tuple[Weight, ...], None] = {}  # a tied head comes up twice and is written once
    together = {op.output: group for group in graph.siblings for op in group}
    for op in graph.ops:
        ops = together.get(op.output, (op,))
        for column in zip_longest(*(each.weights for each in ops)):
            groups.setdefault(tuple(weight for weight in column if weight))
    return list(groups)


def _interleave(group: tuple[Weight, ...], plans: Mapping[str, Plan]) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """The payload tensors of sibling weights, like parts next to each other."""
    columns = [describe(weight, str(plans[weight.name].choice.layout)) for weight in group]
    for index in range(max(len(column) for column in columns)):
        yield from (column[index] for column in columns if index < len(column))


def _reserve(descriptor: int, size: int) -> None:
    if sys.platform == "linux":  # elsewhere a full disk shows only while writing
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.truncate(descriptor, size)


def _encode_all(graph: Graph, plans: Mapping[str, Plan]) -> Iterator[EncodedRows]:
    """Encoded rows in any order that keeps each run together, a few ahead of the writer."""
    with ThreadPoolExecutor(_WORKERS) as pool:
        ahead: list[Future[EncodedRows]] = []
        for weight in graph.weights:
            for job in jobs(weight, plans[weight.name].choice):
                ahead.append(pool.submit(encode_rows, job, plans[weight.name]))
                if len(ahead) > _WORKERS:
                    yield ahead.pop(0).result()
        for future in ahead:
            yield future.result()


def jobs(weight: Weight, choice: Choice) -> Iterator[Job]:
    """A weight in jobs of at most a few million numbers."""
    for run, method in zip(choice.layout.split(weight.name, weight.stored), choice.methods, strict=True):
        count = run.shape[0]
        step = max(1, _ENCODED_NUMBERS // run.shape[1]) if len(run.shape) == 2 else count
        if weight.role in ("query", "key"):  # whole heads
            step = max(weight.head_dim, step // weight.head_dim * weight.head_dim)
        member = weight.shape[1] if len(weight.shape) == 3 else count
        for first in range(0, count, member):
            for start in range(first, first + member, step):
                yield Job(weight, run, method, start, min(start + step, first + member))


class _Source:
    """The rows of a job in the checkpoint; `exporters.quant.method.Rows` to a method."""

    def __init__(self, job: Job, plan: Plan, largest: float) -> None:
        self._source = plan.source
        self._largest = largest
        by_rows = plan.choice.layout.axis == "rows"
        first = job.run.start if by_rows else 0
        self._rows = (first + job.start, first + job.stop)
        self._columns = None if by_rows else (job.run.start, job.run.stop)
        self.zero = False

    def read(self) -> Array:
        rows = self._source.read(*self._rows)
        if self._columns:
            rows = rows[:, slice(*self._columns)]
        low, high = _check_numbers(rows, self._source.name, self._largest)
        self.zero = low == high == 0
        return rows

    def codes(self) -> Parts:
        parts, scheme = self._source.codes(*self._rows), self._source.scheme
        if self._columns:
            assert scheme is not None
            parts = payload.slice_columns(scheme, parts, *self._columns)
        bounds = [
            _check_numbers(part, self._source.name, _LARGEST_HALF) for part in parts.values() if part.dtype.kind == "f"
        ]
        self.zero = all(low == high == 0 for low, high in bounds)
        return parts


def _check_numbers(values: npt.NDArray[np.floating], name: str, largest: float) -> tuple[float, float]:
    """The least and the largest number. Raises CheckpointError for unusable ones."""
    low, high = float(values.min()), float(values.max())  # min and max return NaN where there is one
    if not (-largest <= low and high <= largest):
        raise CheckpointError(
            f"tensor {name!r} holds numbers from {low:g} to {high:g}; only finite ones up to {largest:g} can be "
            "stored: the checkpoint is damaged, or its training diverged"
        )
    return low, high


def encode_rows(job: Job, plan: Plan) -> EncodedRows:
    """Quantize or carry the rows of a job. Raises CheckpointError for numbers that cannot be stored."""
    scheme = payload.parse_scheme(job.run.scheme)
    source = _Source(job, plan, _LARGEST_FLOAT if job.run.scheme == "float32" else _LARGEST_HALF)
    if scheme is None:
        dtype = np.float16 if job.run.scheme == "float16" else np.float32
        parts: Parts = {"": np.asarray(source.read(), dtype)}
    else:
        parts = find(job.method).quantize(source, scheme, _of_job(plan, job))
    return EncodedRows(job, parts, source.zero)


def _of_job(plan: Plan, job: Job) -> Statistics | None:
    """The statistics of a job's matrix of a stack, or of those columns that its run holds."""
    found, run = plan.statistics, job.run
    if isinstance(found, tuple):
        return found[job.start // job.weight.shape[1]]
    if found is None or plan.choice.layout.axis == "rows":
        if found is None or found.heads is None:
            return found
        first, last = (run.start + row for row in (job.start, job.stop))
        return replace(found, heads=found.heads[first // job.weight.head_dim : last // job.weight.head_dim])
    columns = slice(run.start, run.stop)
    square, moment = found.mean_square, found.moment
    return Statistics(
        found.tokens, None if square is None else square[columns], None if moment is None else moment[columns, columns]
    )


def _write_rows(file: BinaryIO, info: TensorInfo, start: int, values: npt.NDArray[Any]) -> int:
    """Write rows of a tensor at their place; returns the bytes written."""
    data = np.ascontiguousarray(values).tobytes()
    assert values.shape[1:] == info.shape[1:], (values.shape, info)
    offset = info.start + start * ((info.stop - info.start) // info.shape[0])
    assert offset + len(data) <= info.stop
    file.seek(offset)
    return file.write(data)
