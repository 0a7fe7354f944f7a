"""The reference's ops that work on each row by itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.ops import Add, Embed, Gate, Linear, Norm, Softcap
from exporters.reference.state import Array, Step


def embed(step: Step, attrs: Embed, inputs: Sequence[Any]) -> Array:
    ids: npt.NDArray[np.int64] = inputs[0]
    rows: Array
    if step.weights.keep:
        rows = step.weights.whole(attrs.weight)[ids]
    else:
        rows = np.concatenate([step.weights.rows(attrs.weight, int(i), int(i) + 1) for i in ids])
    return rows * np.float32(attrs.scale)


def norm(step: Step, attrs: Norm, inputs: Sequence[Array]) -> Array:
    """RMS norm (arXiv:1910.07467) over vectors of `dim`, the mean of squares in float64."""
    (x,) = inputs
    vectors = x.reshape(len(x), attrs.vectors, attrs.dim)
    mean = np.mean(np.square(vectors, dtype=np.float64), axis=-1, keepdims=True)
    scaled = vectors * (1 / np.sqrt(mean + attrs.eps)).astype(np.float32)
    return np.asarray(scaled * (step.weights.whole(attrs.weight) + np.float32(attrs.offset))).reshape(x.shape)


def linear(step: Step, attrs: Linear, inputs: Sequence[Array]) -> Array:
    out = step.weights.times(inputs[0], attrs.weight)
    return out + step.weights.whole(attrs.bias) if attrs.bias else out


def gate(step: Step, attrs: Gate, inputs: Sequence[Array]) -> Array:
    return np.asarray(activate(attrs.activation, inputs[0]) * inputs[1])


def add(step: Step, attrs: Add, inputs: Sequence[Array]) -> Array:
    return np.asarray(inputs[0] + inputs[1])


def softcap(step: Step, attrs: Softcap, inputs: Sequence[Array]) -> Array:
    return np.asarray(np.float32(attrs.cap) * np.tanh(inputs[0] / np.float32(attrs.cap)))


def activate(name: str, x: Array) -> Array:
    """silu: x·sigmoid(x). gelu_tanh: the tanh approximation of GELU (arXiv:1606.08415)."""
    if name == "silu":
        return np.asarray(x / (1 + np.exp(-np.clip(x, -80, None))))
    assert name == "gelu_tanh", name
    inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x**3)
    return np.asarray(np.float32(0.5) * x * (1 + np.tanh(inner)))
