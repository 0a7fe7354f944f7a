"""Ops that move numbers: reshapes, slices, and values put together."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from edge.errors import FormatError
from runtimes.coreml_interpreter.kind import Array, Inputs, Kind, axis_of, require
from runtimes.coreml_interpreter.model import Tensor

_SLICED = ("x", "begin", "end", "stride", "begin_mask", "end_mask", "squeeze_mask")


def _infer_reshape(inputs: Inputs) -> Tensor:
    x, shape = inputs["x"], tuple(inputs["shape"].ints())
    require(
        min(shape, default=1) >= 0 and math.prod(shape) == math.prod(x.shape), f"{x.type} reshaped to {list(shape)}"
    )
    return Tensor(x.dtype, shape)


def _infer_transpose(inputs: Inputs) -> Tensor:
    x, perm = inputs["x"], inputs["perm"].ints()
    require(sorted(perm) == list(range(len(x.shape))), f"{x.type} transposed by {perm}")
    return Tensor(x.dtype, tuple(x.shape[axis] for axis in perm))


def _infer_expand(inputs: Inputs) -> Tensor:
    x, axes = inputs["x"], inputs["axes"].ints()
    rank = len(x.shape) + len(axes)
    new, sizes = {axis_of(axis, rank) for axis in axes}, iter(x.shape)
    require(len(new) == len(axes), f"{x.type} expanded at {axes}")
    return Tensor(x.dtype, tuple(1 if axis in new else next(sizes) for axis in range(rank)))


def _bounds(inputs: Inputs, shape: tuple[int, ...], numbers: Any, flags: Any) -> tuple[list[slice], list[int]]:
    """The slice of each axis, and the axes that go."""
    rank = len(shape)
    begin, end = (numbers(inputs[name]) for name in ("begin", "end"))
    stride = [1] * rank if inputs["stride"] is None else numbers(inputs["stride"])
    first, last, gone = (
        [False] * rank if inputs[name] is None else flags(inputs[name]) for name in _SLICED if name.endswith("_mask")
    )
    if any(len(item) != rank for item in (begin, end, stride, first, last, gone)):
        raise FormatError(f"a slice with bounds of another rank than {list(shape)}")
    slices = []
    for axis, size in enumerate(shape):
        start, stop = 0 if first[axis] else begin[axis], size if last[axis] else end[axis]
        if stride[axis] != 1 or not 0 <= start < stop <= size or (gone[axis] and stop != start + 1):
            raise FormatError(f"a slice {start}…{stop} by {stride[axis]} of axis {axis} of {list(shape)}")
        slices.append(slice(start, stop))
    return slices, [axis for axis in range(len(shape)) if gone[axis]]


def _infer_slice(inputs: Inputs) -> Tensor:
    x = inputs["x"]
    slices, gone = _bounds(inputs, x.shape, lambda known: known.ints(), lambda known: known.flags())
    return Tensor(x.dtype, tuple(item.stop - item.start for axis, item in enumerate(slices) if axis not in gone))


def _slice(inputs: Inputs) -> Array:
    x = inputs["x"]
    slices, gone = _bounds(inputs, x.shape, np.asarray, np.asarray)
    return np.asarray(x[tuple(slices)].squeeze(tuple(gone)))


def _infer_concat(inputs: Inputs) -> Tensor:
    values = inputs["values"]
    first = values[0]
    (axis,) = inputs["axis"].ints()
    axis = axis_of(axis, len(first.shape))
    require(inputs["interleave"].flags() == [False], "an interleaved concat")
    for value in values:
        rest = value.shape[:axis] + value.shape[axis + 1 :]
        same = value.dtype == first.dtype and rest == first.shape[:axis] + first.shape[axis + 1 :]
        require(same, f"{value.type} put behind {first.type} along axis {axis}")
    total = sum(value.shape[axis] for value in values)
    return Tensor(first.dtype, (*first.shape[:axis], total, *first.shape[axis + 1 :]))


def _infer_stack(inputs: Inputs) -> Tensor:
    values = inputs["values"]
    first = values[0]
    (axis,) = inputs["axis"].ints()
    axis = axis_of(axis, len(first.shape) + 1)
    require(all(value.type == first.type for value in values), f"a stack of different types, {first.type} among them")
    return Tensor(first.dtype, (*first.shape[:axis], len(values), *first.shape[axis:]))


def _infer_gather(inputs: Inputs) -> Tensor:
    x, indices = inputs["x"], inputs["indices"]
    (axis,) = inputs["axis"].ints()
    axis = axis_of(axis, len(x.shape))
    require(indices.dtype == "int32" and inputs["batch_dims"].ints() == [0], f"a gather by {indices.type}")
    return Tensor(x.dtype, x.shape[:axis] + indices.shape + x.shape[axis + 1 :])


def _gather(inputs: Inputs) -> Array:
    x, indices, axis = inputs["x"], inputs["indices"], int(inputs["axis"])
    size = x.shape[axis]
    if indices.size and (indices.min() < 0 or indices.max() >= size):
        raise FormatError(f"index {indices.min()} or {indices.max()} of {size}")
    return np.asarray(np.take(x, indices, axis))


KINDS: dict[str, Kind] = {
    "reshape": Kind(
        ("x", "shape"),
        _infer_reshape,
        lambda inputs: inputs["x"].reshape([int(i) for i in inputs["shape"]]),
        moves=True,
    ),
    "transpose": Kind(
        ("x", "perm"),
        _infer_transpose,
        lambda inputs: inputs["x"].transpose([int(i) for i in inputs["perm"]]),
        moves=True,
    ),
    "expand_dims": Kind(
        ("x", "axes"),
        _infer_expand,
        lambda inputs: np.expand_dims(inputs["x"], tuple(int(i) for i in np.atleast_1d(inputs["axes"]))),
        moves=True,
    ),
    "slice_by_index": Kind(_SLICED, _infer_slice, _slice, optional=dict.fromkeys(_SLICED[3:]), moves=True),
    "concat": Kind(
        ("values", "axis", "interleave"),
        _infer_concat,
        lambda inputs: np.concatenate(inputs["values"], int(inputs["axis"])),
        several="values",
        moves=True,
    ),
    "stack": Kind(
        ("values", "axis"),
        _infer_stack,
        lambda inputs: np.stack(inputs["values"], int(inputs["axis"])),
        several="values",
        moves=True,
    ),
    "gather": Kind(("x", "indices", "axis", "batch_dims", "validate_indices"), _infer_gather, _gather, moves=True),
}
