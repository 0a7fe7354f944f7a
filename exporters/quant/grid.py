"""The grid of a scheme over some rows: which numbers each group's codes stand for, chosen by what an error costs.

Everything here is transposed, [columns, rows], since what is worked on at a time is a column of many rows: its numbers
then lie next to each other. With q the code of an element, its number is scale · (q - zero) + offset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

import numpy as np

from edge.payload import Scheme, pack_nibbles
from exporters.quant.method import Array, Parts

# Where the largest weight of a symmetric group is put on the code axis: at the end of the range, or beyond it, clipped.
_ENDS = {
    4: (-11.0, -10.2, -9.5, -8.9, -8.4, -8.0, -7.6, -7.2, 7.0, 7.4, 7.8, 8.3, 8.9),
    8: (-132.0, -128.0, -127.0, 127.0),
}
_SHRINK = (1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 0.75, 0.7)
_LARGEST = 65504.0


@dataclass(slots=True)
class Grid:
    """Scales, zeros and offsets are float32 [groups, rows], scales and offsets exact in float16."""

    scheme: Scheme
    scales: Array
    zeros: Array
    offsets: Array

    @property
    def low(self) -> float:
        return -float(self.scheme.zero) if self.scheme.kind == "sym" else 0.0

    @property
    def high(self) -> float:
        return self.low + float((1 << self.scheme.bits) - 1)

    def codes(self, values: Array, group: int) -> Array:
        """The nearest codes, less the zero, of values [columns, rows] or [rows] of one group."""
        scales, zeros = self.scales[group], self.zeros[group]
        codes = values - self.offsets[group] if self.scheme.kind == "affine" else values
        codes = np.rint(codes * _reciprocal(scales))
        return np.asarray(np.clip(codes, self.low - zeros, self.high - zeros))

    def values(self, codes: Array, group: int) -> Array:
        """What codes, less the zero, stand for."""
        found = codes * self.scales[group]
        return np.asarray(found + self.offsets[group] if self.scheme.kind == "affine" else found)

    def parts(self, codes: Array, columns: int) -> Parts:
        """The payload's parts of codes, less the zero, [columns, rows]; the padding of a group stands for zero."""
        scheme, groups = self.scheme, len(self.scales)
        rows = codes.shape[1]
        shifts = np.repeat(self.zeros - np.float32(self.low), scheme.group, axis=0)
        padded = shifts.copy()
        if scheme.kind == "affine":  # nothing reads the padding; zero is as near as the grid comes
            away = np.clip(np.rint(-self.offsets * _reciprocal(self.scales)), self.low, self.high)
            padded = np.repeat(away, scheme.group, axis=0)
        padded[:columns] = codes + shifts[:columns]
        stored = np.ascontiguousarray(padded.T).astype(np.uint8).reshape(rows, groups * scheme.group)
        parts: Parts = {
            "codes": pack_nibbles(stored) if scheme.bits == 4 else stored,
            "scales": np.ascontiguousarray(self.scales.T).astype(np.float16),
        }
        if scheme.kind == "zp":
            parts["zeros"] = pack_nibbles(np.ascontiguousarray(self.zeros.T).astype(np.uint8))
        if scheme.kind == "affine":
            parts["offsets"] = np.ascontiguousarray(self.offsets.T).astype(np.float16)
        return parts


def search(scheme: Scheme, weight: Array, importance: Array) -> Grid:
    """The grid that errs least on weight [columns, rows], the square of an error times the column's importance."""
    columns, rows = weight.shape
    groups = scheme.groups(columns)
    grid = Grid(scheme, *(np.zeros((groups, rows), np.float32) for _ in range(3)))
    for group in range(groups):
        part = slice(group * scheme.group, (group + 1) * scheme.group)
        w, h = weight[part], importance[part, None]
        if not float(h.max()) > 0:  # inputs that never were: any error costs the same
            h = np.ones_like(h)
        match scheme.kind:
            case "sym":
                grid.scales[group] = _symmetric(scheme, w, h)
            case "zp" | "affine":
                grid.scales[group], grid.zeros[group], grid.offsets[group] = _asymmetric(scheme, w, h)
            case _:
                assert_never(scheme.kind)
    return grid


def to_half(values: Array) -> Array:
    """Rounded to what float16 holds."""
    return np.clip(values, -_LARGEST, _LARGEST).astype(np.float16).astype(np.float32)


def _reciprocal(scales: Array) -> Array:
    return np.divide(1, scales, out=np.zeros_like(scales), where=np.abs(scales) >= np.finfo(np.float32).tiny)


def _symmetric(scheme: Scheme, w: Array, h: Array) -> Array:
    """Least squares: with codes q the best scale is Σhwq / Σhq², and it saves (Σhwq)² / Σhq²."""
    low, high = -float(scheme.zero), float(scheme.zero - 1)
    largest = np.take_along_axis(w, np.abs(w).argmax(axis=0)[None], axis=0)[0]
    best, best_gain = np.zeros_like(largest), np.full_like(largest, -1)
    weighted = w * h
    for end in _ENDS[scheme.bits]:
        q = np.clip(np.rint(w * _reciprocal(largest / np.float32(end))), low, high)
        dot = np.einsum("ij,ij->j", weighted, q)
        square = np.einsum("ij,ij->j", q * h, q)
        scale = np.divide(dot, square, out=np.zeros_like(dot), where=square > 0)
        gain = dot * scale
        better = gain > best_gain
        best, best_gain = np.where(better, scale, best), np.where(better, gain, best_gain)
    return to_half(best)


def _asymmetric(scheme: Scheme, w: Array, h: Array) -> tuple[Array, Array, Array]:
    """Scale and zero or offset from the group's range, shrunk about its middle by the factor that errs least."""
    top = np.float32((1 << scheme.bits) - 1)
    low, high = w.min(axis=0), w.max(axis=0)
    if scheme.kind == "zp":  # zero is a code, so the range must hold it
        low, high = np.minimum(low, 0), np.maximum(high, 0)
    best = [np.zeros_like(low) for _ in range(3)]
    least = np.full_like(low, np.inf)
    for factor in _SHRINK:
        middle, reach = (low + high) / 2, (high - low) / 2 * np.float32(factor)
        scale = to_half(2 * reach / top)
        back = _reciprocal(scale)
        if scheme.kind == "zp":
            zero = np.clip(np.rint((reach - middle) * back), 0, top)
            offset = np.zeros_like(zero)
        else:
            zero, offset = np.zeros_like(low), to_half(middle - reach)
        codes = np.clip(np.rint((w - offset) * back), -zero, top - zero)
        error = np.einsum("ij,ij->j", np.square(w - offset - codes * scale), h)
        better = error < least
        least = np.where(better, error, least)
        best = [np.where(better, new, old) for new, old in zip((scale, zero, offset), best, strict=True)]
    return best[0], best[1], best[2]
