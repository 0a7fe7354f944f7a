"""Ops that work number by number, and sums over axes."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from edge.errors import FormatError
from runtimes.coreml_interpreter.kind import FLOATS, Array, Inputs, Kind, axis_of, broadcast, require
from runtimes.coreml_interpreter.model import Tensor

_CASTS = {"fp16": "float16", "fp32": "float32", "int32": "int32", "bool": "bool"}


def _unary(function: Callable[[Array], Array]) -> Kind:
    def infer(inputs: Inputs) -> Tensor:
        x = inputs["x"]
        require(x.dtype in FLOATS, f"{x.type} where floats are needed")
        return Tensor(x.dtype, x.shape)

    return Kind(("x",), infer, lambda inputs: function(inputs["x"]))


def _binary(function: Callable[[Array, Array], Array], result: str = "") -> Kind:
    def infer(inputs: Inputs) -> Tensor:
        x, y = inputs["x"], inputs["y"]
        require(x.dtype == y.dtype and x.dtype in (*FLOATS, "int32"), f"{x.type} and {y.type} are of different types")
        return Tensor(result or x.dtype, broadcast(x.shape, y.shape))

    return Kind(("x", "y"), infer, lambda inputs: function(inputs["x"], inputs["y"]))


def _reduction(function: Callable[..., Array]) -> Kind:
    def infer(inputs: Inputs) -> Tensor:
        x = inputs["x"]
        axes = {axis_of(axis, len(x.shape)) for axis in inputs["axes"].ints()}
        (kept,) = inputs["keep_dims"].flags()
        require(x.dtype in FLOATS, f"{x.type} where floats are needed")
        shape = tuple(1 if i in axes else size for i, size in enumerate(x.shape) if kept or i not in axes)
        return Tensor(x.dtype, shape)

    def evaluate(inputs: Inputs) -> Array:
        axes = tuple(int(axis) for axis in inputs["axes"])
        return function(inputs["x"], axis=axes, keepdims=bool(inputs["keep_dims"]))

    return Kind(("x", "axes", "keep_dims"), infer, evaluate)


def _infer_rsqrt(inputs: Inputs) -> Tensor:
    x, epsilon = inputs["x"], inputs["epsilon"]
    require(x.dtype in FLOATS and epsilon.dtype == x.dtype and epsilon.shape == (), f"{x.type} and {epsilon.type}")
    return Tensor(x.dtype, x.shape)


def _infer_cast(inputs: Inputs) -> Tensor:
    name = inputs["dtype"].text()
    require(name in _CASTS, f"a cast to {name!r}; known are {', '.join(_CASTS)}")
    return Tensor(_CASTS[name], inputs["x"].shape)


def _cast(inputs: Inputs) -> Array:
    name = _CASTS[str(inputs["dtype"])]
    return np.asarray(inputs["x"]).astype(np.float32 if name in FLOATS else np.dtype(name))


def _infer_softmax(inputs: Inputs) -> Tensor:
    x = inputs["x"]
    (axis,) = inputs["axis"].ints()
    axis_of(axis, len(x.shape))
    require(x.dtype in FLOATS, f"{x.type} where floats are needed")
    return Tensor(x.dtype, x.shape)


def _softmax(inputs: Inputs) -> Array:
    x, axis = inputs["x"], int(inputs["axis"])
    powers = np.exp(x - x.max(axis=axis, keepdims=True))
    return np.asarray(powers / powers.sum(axis=axis, keepdims=True))


def _sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-x)))


def _infer_gelu(inputs: Inputs) -> Tensor:
    mode = inputs["mode"].text()
    require(mode == "TANH_APPROXIMATION", f"gelu in the mode {mode!r}, which is not known here")
    return Tensor(inputs["x"].dtype, inputs["x"].shape)


def _gelu(inputs: Inputs) -> Array:
    """The tanh approximation (arXiv:1606.08415)."""
    x = inputs["x"]
    return np.asarray(x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + np.float32(0.044715) * x * x * x))))


def _infer_pad(inputs: Inputs) -> Tensor:
    x, pad = inputs["x"], inputs["pad"].ints()
    require(
        inputs["mode"].text() == "constant" and inputs["constant_val"].dtype == x.dtype, "a pad that is not constant"
    )
    if len(pad) % 2 or len(pad) > 2 * len(x.shape) or min(pad, default=0) < 0:
        raise FormatError(f"a pad of {pad} for {x.type}")
    sides = [0] * (2 * len(x.shape) - len(pad)) + pad
    shape = tuple(size + sides[2 * i] + sides[2 * i + 1] for i, size in enumerate(x.shape))
    return Tensor(x.dtype, shape)


def _pad(inputs: Inputs) -> Array:
    x, pad = inputs["x"], [int(i) for i in inputs["pad"]]
    sides = [0] * (2 * x.ndim - len(pad)) + pad
    return np.pad(x, list(zip(sides[0::2], sides[1::2], strict=True)), constant_values=float(inputs["constant_val"]))


KINDS: dict[str, Kind] = {
    "identity": _unary(lambda x: x),
    "silu": _unary(lambda x: x * _sigmoid(x)),
    "sigmoid": _unary(_sigmoid),
    "tanh": _unary(np.tanh),
    "abs": _unary(np.abs),
    "gelu": Kind(("x", "mode"), _infer_gelu, _gelu),
    "add": _binary(np.add),
    "sub": _binary(np.subtract),
    "mul": _binary(np.multiply),
    "real_div": _binary(np.divide),
    "maximum": _binary(np.maximum),
    "greater": _binary(np.greater, "bool"),
    "equal": _binary(np.equal, "bool"),
    "less": _binary(np.less, "bool"),
    "reduce_mean": _reduction(np.mean),
    "reduce_sum": _reduction(np.sum),
    "reduce_max": _reduction(np.max),
    "rsqrt": Kind(("x", "epsilon"), _infer_rsqrt, lambda inputs: 1 / np.sqrt(inputs["x"] + inputs["epsilon"])),
    "softmax": Kind(("x", "axis"), _infer_softmax, _softmax),
    "cast": Kind(("x", "dtype"), _infer_cast, _cast),
    "pad": Kind(("x", "pad", "mode", "constant_val"), _infer_pad, _pad),
}
