"""An engine whose program is one linear, for tests of its kernels: tokens pick rows of x, logits are x · weightᵀ."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edge import payload
from edge.payload import Scheme
from runtimes.native.program import KINDS, NONE

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
    from runtimes.native import _native

    tokens, columns = x.shape
    rows = len(parts["codes"])
    steps = [
        {"kind": "embed", "matrix": 0, "out": 1},
        {"kind": "select", "a": 1, "out": 2},
        {"kind": "quantize", "a": 2, "quantized_out": 0},
        {"kind": "linear", "matrix": 1, **({"a": 2} if crest is None else {"quantized": 0})},
    ]
    fields = ("a", "b", "c", "out", "quantized", "quantized_out", "matrix", "vector")
    ints = [[KINDS.index(str(s["kind"])), *(s.get(f, NONE) for f in fields), 1, 1, 0, 0, NONE, 0, 0, 0] for s in steps]
    reals = [[1.0, 0.0, 0.0, crest or 0.0]] * len(steps)
    program = _native.Program(
        np.array(ints, np.int32),
        np.array(reals, np.float32),
        np.array([[3, 0, rows, NONE]], np.int32),
        np.array([[rows, 1], [columns, 0], [columns, 1]], np.int64),
        np.array([[columns, 1]], np.int64),
    )
    program.add_matrix(("float32", 0, columns, [tokens], False))
    program.add_matrix((f"int{scheme.bits}-{scheme.kind}", scheme.group, columns, [rows], False))
    program.set_kv(1, tokens, 1, 1, [], [])
    engine = _native.Engine(program, kernels, threads)
    empty = np.empty
    engine.pack(
        0, 0, 0, x.view(np.uint8).reshape(tokens, -1), empty((tokens, 0), np.uint8), empty((tokens, 0), np.uint8)
    )
    found = [
        parts[name].view(np.uint8).reshape(rows, -1)
        for name in ("codes", "scales", "zeros", "offsets")
        if name in parts
    ]
    engine.pack(1, 0, 0, *found, *[empty((rows, 0), np.uint8)] * (3 - len(found)))
    ids = np.arange(tokens, dtype=np.int32)
    logits = np.full((tokens, rows), np.nan, np.float32)
    engine.forward(ids, np.array([[0, tokens, 0]]), [[]], [], ids.astype(np.int64), logits)
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
