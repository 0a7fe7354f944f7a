"""An engine whose program is one linear, for tests of its kernels: tokens pick rows of x, logits are x · weightᵀ."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edge import payload
from edge.payload import Scheme
from tests.runtimes.native.tables import engine_of, pack

Array = npt.NDArray[Any]


def random_parts(scheme: Scheme, rows: int, columns: int, seed: int = 0) -> dict[str, Array]:
    """A payload weight with every code and zero point possible, padded columns included."""
    random = np.random.default_rng(seed)
    parts: dict[str, Array] = {}
    for name, (dtype, shape) in scheme.parts(rows, columns).items():
        if dtype == "U8":
            parts[name] = random.integers(0, 256, shape, dtype=np.uint8)
        else:
            parts[name] = random.normal(0, 0.05, shape).astype(np.float16)
    return parts


def random_rows(tokens: int, columns: int, seed: int = 1) -> npt.NDArray[np.float32]:
    """Activations with a few large values, so that some blocks are kept in 16 bits."""
    random = np.random.default_rng(seed)
    x = random.normal(0, 1, (tokens, columns))
    x[random.random(x.shape) < 0.02] *= 20
    return x.astype(np.float32)


def run_linear(
    scheme: Scheme, parts: dict[str, Array], x: npt.NDArray[np.float32], *, kernels: str = "", threads: int = 1,
    crest: float | None = 4.5,
) -> npt.NDArray[np.float32]:  # fmt: skip
    """x · weightᵀ, [tokens, rows], with activations quantized by that crest, or as floats for None."""
    tokens, columns = x.shape
    rows = len(parts["codes"])
    steps: list[dict[str, Any]] = [
        {"kind": "embed", "output": 1, "matrix": 0, "scale": 1.0},
        {"kind": "select", "input": 1, "output": 2},
        {"kind": "quantize", "input": 2, "output": 3, "crest": crest or 0.0},
        {"kind": "linear", "input": 2 if crest is None else 3, "residual": None, "outputs": [0], "matrix": 1,
         "biases": [None]},
    ]  # fmt: skip
    name = f"int{scheme.bits}-{scheme.kind}"
    engine = engine_of(
        steps, [(rows, "wanted"), (columns, ""), (columns, "wanted"), (columns, "wanted codes")],
        [("float32", 0, columns, [tokens]), (name, scheme.group, columns, [rows])],
        kernels=kernels, threads=threads,
    )  # fmt: skip
    pack(engine, 0, 0, x.view(np.uint8).reshape(tokens, -1))
    pack(engine, 1, 0, *(parts[part] for part in ("codes", "scales", "zeros", "offsets") if part in parts))
    ids = np.arange(tokens, dtype=np.int32)
    logits = np.full((tokens, rows), np.nan, np.float32)
    engine.forward(ids, np.array([[tokens, 0]]), [[]], [], ids.astype(np.int64), logits)
    return logits


def quantized(x: npt.NDArray[np.float32], crest: float) -> npt.NDArray[np.float64]:
    """The activations that the engine's codes stand for, computed the long way."""
    tokens, columns = x.shape
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, -columns % 32))).reshape(tokens, -1, 32)
    largest = np.abs(padded).max(-1, keepdims=True)
    precise = largest > crest * np.sqrt((padded**2).mean(-1, keepdims=True))
    step = np.maximum(largest / 127 / np.where(precise, 128, 1), 1e-300)
    return (np.round(padded / step) * step).reshape(tokens, -1)[:, :columns]


def dequantized(scheme: Scheme, parts: dict[str, Array], columns: int) -> npt.NDArray[np.float64]:
    return payload.dequantize(scheme, parts, columns).astype(np.float64)
