"""Products of matrices, and matrices made of codes."""

from __future__ import annotations

import numpy as np

from edge.errors import FormatError
from runtimes.coreml_interpreter.kind import FLOATS, Array, Inputs, Kind, broadcast, require
from runtimes.coreml_interpreter.model import Tensor

_CODES = ("int4", "uint4", "int8", "uint8")


def _infer_linear(inputs: Inputs) -> Tensor:
    x, weight, bias = inputs["x"], inputs["weight"], inputs["bias"]
    fits = x.dtype == weight.dtype and x.dtype in FLOATS and len(weight.shape) == 2 and len(x.shape) in (1, 2, 3)
    if not fits or x.shape[-1] != weight.shape[1]:
        raise FormatError(f"a product of {x.type} with {weight.type}")
    require(bias is None or (bias.dtype == x.dtype and bias.shape == weight.shape[:1]), "a bias that does not fit")
    return Tensor(x.dtype, (*x.shape[:-1], weight.shape[0]))


def _linear(inputs: Inputs) -> Array:
    result = inputs["x"] @ inputs["weight"].T
    return np.asarray(result if inputs["bias"] is None else result + inputs["bias"])


def _infer_matmul(inputs: Inputs) -> Tensor:
    x, y = inputs["x"], inputs["y"]
    (x_transposed,), (y_transposed,) = inputs["transpose_x"].flags(), inputs["transpose_y"].flags()
    if x.dtype != y.dtype or x.dtype not in FLOATS or min(len(x.shape), len(y.shape)) < 2:
        raise FormatError(f"a product of {x.type} with {y.type}")
    rows, inner = x.shape[:-3:-1] if x_transposed else x.shape[-2:]
    other, columns = y.shape[:-3:-1] if y_transposed else y.shape[-2:]
    require(inner == other, f"a product of {x.type} with {y.type}")
    return Tensor(x.dtype, (*broadcast(x.shape[:-2], y.shape[:-2]), rows, columns))


def _matmul(inputs: Inputs) -> Array:
    x, y = inputs["x"], inputs["y"]
    x = x.swapaxes(-1, -2) if inputs["transpose_x"] else x
    return np.asarray(x @ (y.swapaxes(-1, -2) if inputs["transpose_y"] else y))


def _infer_shift_scale(inputs: Inputs) -> Tensor:
    data, scale, offset = inputs["data"], inputs["scale"], inputs["offset"]
    if data.dtype not in _CODES or scale.dtype not in FLOATS or len(data.shape) != len(scale.shape):
        raise FormatError(f"data of {data.type} with scales of {scale.type}")
    divided = all(0 < few <= many and many % few == 0 for many, few in zip(data.shape, scale.shape, strict=True))
    require(divided, f"blocks of {list(scale.shape)} do not divide {list(data.shape)}")
    if offset is not None:
        fits = offset.shape == scale.shape and offset.dtype in (data.dtype, *FLOATS)
        require(fits, f"offsets of {offset.type} with data of {data.type} and scales of {scale.type}")
    return Tensor(scale.dtype, data.shape)


def shift_scale(inputs: Inputs) -> Array:
    """scale · (data − offset), each scale and offset for a block of data: data.shape / scale.shape along each axis."""
    data, scale, offset = inputs["data"], inputs["scale"].astype(np.float32), inputs["offset"]
    blocks, spread = [], []
    for many, few in zip(data.shape, scale.shape, strict=True):
        blocks += [few, many // few]
        spread += [few, 1]
    numbers = data.reshape(blocks).astype(np.float32)
    if offset is not None:
        numbers -= offset.reshape(spread).astype(np.float32)
    numbers *= scale.reshape(spread)
    return np.asarray(numbers.reshape(data.shape))


def _infer_conv(inputs: Inputs) -> Tensor:
    """Only what a product of channels needs: one number a filter and channel, strides of 1, no groups."""
    x, weight, bias = inputs["x"], inputs["weight"], inputs["bias"]
    plain = (
        inputs["strides"].ints() == [1, 1] and inputs["dilations"].ints() == [1, 1] and inputs["groups"].ints() == [1]
    )
    plain = plain and inputs["pad"].ints() == [0] * 4 and inputs["pad_type"].text() == "valid"
    if not plain or len(x.shape) != 4 or len(weight.shape) != 4 or weight.shape[2:] != (1, 1):
        raise FormatError(f"a convolution of {x.type} with {weight.type}, which is more than a product of channels")
    if x.dtype != weight.dtype or x.dtype not in FLOATS or x.shape[1] != weight.shape[1]:
        raise FormatError(f"a product of {x.type} with {weight.type}")
    require(bias.dtype == x.dtype and bias.shape == weight.shape[:1], "a bias that does not fit")
    return Tensor(x.dtype, (x.shape[0], weight.shape[0], *x.shape[2:]))


def _conv(inputs: Inputs) -> Array:
    x, weight = inputs["x"], inputs["weight"]
    flat = weight.reshape(weight.shape[:2]) @ x.reshape(*x.shape[:2], -1)
    return np.asarray(flat.reshape(x.shape[0], -1, *x.shape[2:]) + inputs["bias"][:, None, None])


_CONVOLVED = ("x", "weight", "bias", "strides", "pad_type", "pad", "dilations", "groups")
KINDS: dict[str, Kind] = {
    "linear": Kind(("x", "weight", "bias"), _infer_linear, _linear, optional={"bias": None}),
    "conv": Kind(_CONVOLVED, _infer_conv, _conv),
    "matmul": Kind(("x", "y", "transpose_x", "transpose_y"), _infer_matmul, _matmul),
    "constexpr_blockwise_shift_scale": Kind(
        ("data", "scale", "offset"), _infer_shift_scale, shift_scale, optional={"offset": None}
    ),
}
