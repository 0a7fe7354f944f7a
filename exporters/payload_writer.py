"""Writing `weights.safetensors` as a stream: block by block of rows, never a whole model, seldom a whole tensor.

Weights that read the same input (q, k and v; gate and up) have like parts next to each other, so that a backend can see
them as one matrix over the very same bytes.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from edge import payload
from edge.errors import CheckpointError, StorageError
from edge.graph import Graph, Weight
from edge.safetensors import PADDING, TensorInfo, plan_header
from edge.weights import describe
from exporters.checkpoint import SourceTensor
from exporters.quant import rtn
from exporters.quant.recipe import Choice

_BLOCK = 1 << 21  # numbers quantized at a time: 8 MiB as float32
_WORKERS = 2
_LARGEST_FLOAT, _LARGEST_HALF = float(np.finfo(np.float32).max), 65504.0

Block = tuple[Weight, int, dict[str, npt.NDArray[Any]]]


def write_weights(
    path: Path,
    graph: Graph,
    sources: Mapping[str, SourceTensor],
    choices: Mapping[str, Choice],
    progress: Callable[[float], None],
) -> None:
    """Quantize or carry every weight of the graph and write it. `progress` gets the share that is done.

    Raises StorageError when the space is lacking, before the first block where the system can reserve it, and
    CheckpointError for a tensor with numbers that are not finite, or too large for the float16 that its scheme needs.
    """
    tensors = [entry for group in file_order(graph) for entry in _interleave(group, choices)]
    header, infos = plan_header(tensors)
    size = max(info.stop for info in infos.values())
    total = sum(info.stop - info.start for name, info in infos.items() if not name.startswith(PADDING))
    done = 0
    try:
        with open(path, "wb") as file:
            _reserve(file.fileno(), size)
            file.write(header)
            for weight, start, parts in _blocks(graph, sources, choices):
                for part, values in parts.items():
                    info = infos[f"{weight.name}.{part}" if part else weight.name]
                    done += _write_rows(file, info, start, values)
                progress(done / total)
            assert done == total, f"wrote {done} of {total} payload bytes"
    except OSError as error:
        raise storage_error(error, path, size) from error


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
        groups.setdefault(tuple(op.weight for op in ops if op.weight))
        groups.setdefault(tuple(op.bias for op in ops if op.bias))
    return [group for group in groups if group]


def _interleave(group: tuple[Weight, ...], choices: Mapping[str, Choice]) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """The payload tensors of sibling weights, like parts next to each other."""
    columns = [describe(weight, choices[weight.name].scheme) for weight in group]
    for index in range(max(len(column) for column in columns)):
        yield from (column[index] for column in columns if index < len(column))


def _reserve(descriptor: int, size: int) -> None:
    if sys.platform == "linux":  # elsewhere a full disk shows only while writing
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.truncate(descriptor, size)


def _blocks(graph: Graph, sources: Mapping[str, SourceTensor], choices: Mapping[str, Choice]) -> Iterator[Block]:
    """Blocks of encoded rows in any order that keeps each weight together, a few ahead of the writer."""
    jobs = (
        (weight, start, min(start + _rows(weight), weight.shape[0]))
        for weight in graph.weights
        for start in range(0, weight.shape[0], _rows(weight))
    )
    with ThreadPoolExecutor(_WORKERS) as pool:
        ahead: list[Future[Block]] = []
        for weight, start, stop in jobs:
            rows = _read(sources[weight.name], choices[weight.name], start, stop)
            ahead.append(pool.submit(_encode, weight, start, rows, choices[weight.name]))
            if len(ahead) > _WORKERS:
                yield ahead.pop(0).result()
        for job in ahead:
            yield job.result()


def _rows(weight: Weight) -> int:
    return max(1, _BLOCK // weight.shape[1]) if len(weight.shape) == 2 else weight.shape[0]


def _read(source: SourceTensor, choice: Choice, start: int, stop: int) -> Any:
    """Rows start…stop as numbers, or as codes where they are carried. Raises CheckpointError for unusable numbers."""
    if choice.carried:
        parts = source.codes(start, stop)
        for part in parts.values():
            if part.dtype.kind == "f":
                _check_numbers(part, source.name, _LARGEST_HALF)
        return parts
    rows = source.read(start, stop)
    _check_numbers(rows, source.name, _LARGEST_FLOAT if choice.scheme == "float32" else _LARGEST_HALF)
    return rows


def _check_numbers(values: npt.NDArray[Any], name: str, largest: float) -> None:
    low, high = float(values.min()), float(values.max())  # both carry a NaN through
    if not (-largest <= low and high <= largest):
        raise CheckpointError(
            f"tensor {name!r} holds numbers from {low:g} to {high:g}; only finite ones up to {largest:g} can be "
            "stored: the checkpoint is damaged, or its training diverged"
        )


def _encode(weight: Weight, start: int, rows: Any, choice: Choice) -> Block:
    scheme = payload.parse_scheme(choice.scheme)
    if choice.carried:
        return weight, start, rows
    if scheme is None:
        dtype = np.float16 if choice.scheme == "float16" else np.float32
        return weight, start, {"": np.asarray(rows, dtype)}
    return weight, start, rtn.quantize(scheme, rows)


def _write_rows(file: BinaryIO, info: TensorInfo, start: int, values: npt.NDArray[Any]) -> int:
    """Write rows of a tensor at their place; returns the bytes written."""
    data = np.ascontiguousarray(values).tobytes()
    assert values.shape[1:] == info.shape[1:], (values.shape, info)
    offset = info.start + start * ((info.stop - info.start) // info.shape[0])
    assert offset + len(data) <= info.stop
    file.seek(offset)
    return file.write(data)
