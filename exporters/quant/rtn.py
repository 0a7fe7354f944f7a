"""Round to nearest with a search for each group's scale: the method that needs no calibration.

For a group w and codes q the best scale is least squares, s = Σwq / Σq², and the error it leaves is Σw² - (Σwq)² / Σq².
So each candidate scale is tried by its codes alone, and the one with the largest (Σwq)² / Σq² is kept.
"""

from __future__ import annotations

from typing import Any, assert_never

import numpy as np
import numpy.typing as npt

from edge.payload import Scheme, pack_nibbles
from exporters.quant.method import Array, Parts, Rows, Statistic, Statistics

NEEDS: tuple[Statistic, ...] = ()
# Where the largest weight of a group is put on the code axis: at the end of the range, or beyond it and clipped.
_ENDS = {4: (-9.0, -8.4, -8.0, -7.5, -7.0, 7.0, 7.5), 8: (-127.0,)}
_SHRINK = (1.0, 0.95, 0.9, 0.85, 0.8)
_TINY = np.float32(6e-8)  # the smallest float16 above zero


def quantize(weight: Rows, scheme: Scheme, statistics: Statistics | None) -> Parts:
    """The nearest codes of each number."""
    del statistics
    return encode(scheme, weight.read())


def encode(scheme: Scheme, weight: Array) -> Parts:
    """The parts (see edge.payload) of rows [rows, columns]; the group padding stands for zero."""
    rows, columns = weight.shape
    groups = scheme.groups(columns)
    padded = np.zeros((rows, groups * scheme.group), np.float32)
    padded[:, :columns] = weight
    grouped = padded.reshape(rows * groups, scheme.group)
    match scheme.kind:
        case "sym":
            codes, parts = _symmetric(scheme, grouped)
        case "zp" | "affine":
            codes, parts = _asymmetric(scheme, grouped)
        case _:
            assert_never(scheme.kind)
    parts = {name: values.reshape(rows, groups) for name, values in parts.items()}
    if "zeros" in parts:
        parts["zeros"] = pack_nibbles(parts["zeros"])
    codes = codes.reshape(rows, -1)
    return {"codes": pack_nibbles(codes) if scheme.bits == 4 else codes, **parts}


def _symmetric(scheme: Scheme, w: Array) -> tuple[npt.NDArray[np.uint8], dict[str, npt.NDArray[Any]]]:
    zero = scheme.zero
    largest = np.take_along_axis(w, np.abs(w).argmax(axis=1)[:, None], axis=1)
    best = np.zeros((len(w), 1), np.float32)
    best_gain = np.full((len(w), 1), -1, np.float32)
    for end in _ENDS[scheme.bits]:
        q = _round(w, largest / np.float32(end), -zero, zero - 1)
        dot = np.einsum("ij,ij->i", w, q)[:, None]
        square = np.maximum(np.einsum("ij,ij->i", q, q)[:, None], 1)
        gain = dot * dot / square
        better = gain > best_gain
        best_gain = np.where(better, gain, best_gain)
        best = np.where(better, dot / square, best)
    scales = _to_half(best)
    codes = _round(w, scales.astype(np.float32), -zero, zero - 1) + zero
    return codes.astype(np.uint8), {"scales": scales}


def _asymmetric(scheme: Scheme, w: Array) -> tuple[npt.NDArray[np.uint8], dict[str, npt.NDArray[Any]]]:
    """Scale and zero point or offset from the group's range, shrunk about its middle by the factor that errs least."""
    top = (1 << scheme.bits) - 1
    low, high = w.min(axis=1, keepdims=True), w.max(axis=1, keepdims=True)
    if scheme.kind == "zp":  # zero is a code, so the range must hold it
        low, high = np.minimum(low, 0), np.maximum(high, 0)
    best: tuple[Any, ...] | None = None
    for factor in _SHRINK:
        middle, reach = (low + high) / 2, (high - low) / 2 * np.float32(factor)
        scale = _to_half(2 * reach / top)
        step = np.maximum(scale.astype(np.float32), _TINY)
        if scheme.kind == "zp":
            shift = np.clip(np.rint((reach - middle) / step), 0, top)
            base = -step * shift
        else:
            shift = (middle - reach).astype(np.float16)
            base = shift.astype(np.float32)
        codes = np.clip(np.rint((w - base) / step), 0, top)
        error = np.square(w - (codes * step + base)).sum(axis=1, keepdims=True)
        found = (error, codes, scale, shift)
        best = found if best is None else _better(best, found)
    assert best is not None
    _, codes, scales, shifts = best
    shift_name, shift_type = ("zeros", np.uint8) if scheme.kind == "zp" else ("offsets", np.float16)
    return codes.astype(np.uint8), {"scales": scales, shift_name: shifts.astype(shift_type)}


def _better(a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(np.where(b[0] < a[0], y, x) for x, y in zip(a, b, strict=True))


def _round(w: Array, scale: Array, low: int, high: int) -> Array:
    usable = np.abs(scale) >= np.finfo(np.float32).tiny  # a denormal has no reciprocal
    q = w * np.divide(1, scale, out=np.zeros_like(scale), where=usable)
    np.rint(q, out=q)
    return np.clip(q, low, high, out=q)


def _to_half(scale: Array) -> npt.NDArray[np.float16]:
    return np.clip(scale, -65504, 65504).astype(np.float16)
