"""Rotary frequencies and angles. The one place that knows the formula of each rope kind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from edge.decoder import RopeSpec

Angles = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]
_TABLE_ROWS = 64  # positions whose angles are computed together


@lru_cache(maxsize=64)  # computed for every step otherwise; the result is shared and must not be changed
def inverse_frequencies(rope: RopeSpec, *, context: int = 0) -> npt.NDArray[np.float64]:
    """Angles per position, [dim / 2].

    default: theta^(-2i/dim) (RoFormer, arXiv:2104.09864); linear: divided by `factor`; llama3: three bands by
    wavelength, as in Llama 3.1: short waves kept, long ones divided by `factor`, between them a linear blend; yarn:
    the same with a blend that is linear in the dimension (arXiv:2309.00071). The others depend on `context`, the
    tokens that a session is planned for: dynamic raises theta where they are more than `original_context` ("NTK
    aware" scaling, as transformers computes it), longrope divides by its long factors there and by its short ones
    elsewhere (arXiv:2402.13753).
    """
    theta = rope.theta
    if rope.kind == "dynamic":
        stretch = rope.factor * max(context, rope.original_context) / rope.original_context - (rope.factor - 1)
        theta *= stretch ** (rope.dim / (rope.dim - 2))
    plain = theta ** (-np.arange(0, rope.dim, 2, dtype=np.float64) / rope.dim)
    if rope.kind == "linear":
        return np.asarray(plain / rope.factor)
    if rope.kind == "longrope":
        return np.asarray(plain / (rope.long_factors if context > rope.original_context else rope.short_factors))
    if rope.kind in ("llama3", "yarn"):
        keep = _kept_by_rotations(rope, plain) if rope.kind == "llama3" else _kept_by_dimension(rope)
        return np.asarray(plain * keep + plain / rope.factor * (1.0 - keep))
    return np.asarray(plain)


def _kept_by_rotations(rope: RopeSpec, plain: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    rotations = rope.original_context * plain / (2 * math.pi)
    blend = (rotations - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    return np.clip(blend, 0.0, 1.0)


def _kept_by_dimension(rope: RopeSpec) -> npt.NDArray[np.float64]:
    def dimension(rotations: float) -> float:
        """The dimension that makes so many rotations over the original context."""
        return rope.dim * math.log(rope.original_context / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    first = max(math.floor(dimension(rope.high_freq_factor)), 0)
    last: float = min(math.ceil(dimension(rope.low_freq_factor)), rope.dim - 1)
    if first == last:
        last += 0.001  # a step instead of a blend, as the authors' code has it
    return np.clip(1.0 - (np.arange(rope.dim // 2) - first) / (last - first), 0.0, 1.0)


def angles(rope: RopeSpec, positions: npt.NDArray[np.int64], *, context: int = 0) -> Angles:
    """cos and sin for each position, times the attention factor: what a key or query is rotated with, once.

    Both [positions, dim / 2]; `context` as for `inverse_frequencies`.
    """
    cos, sin = rotations(rope, positions, context=context)
    factor = np.float32(rope.attention_factor)
    return cos * factor, sin * factor


def rotations(rope: RopeSpec, positions: npt.NDArray[np.int64], *, context: int = 0) -> Angles:
    """cos and sin alone, which rotate a key further by so many positions: its attention factor is in it already.

    Computed in float64, so a position of 10^9 is exact.
    """
    phase = positions[:, None].astype(np.float64) * inverse_frequencies(rope, context=context)[None, :]
    return np.cos(phase).astype(np.float32), np.sin(phase).astype(np.float32)


class AngleTable:
    """`angles` of several ropes for one position after another, computed for 64 positions at a time."""

    def __init__(self, ropes: Sequence[RopeSpec], *, context: int) -> None:
        self._ropes = ropes
        self._context = context
        self._rows = lru_cache(maxsize=8)(self._compute)  # enough for some sequences at different positions

    def row(self, position: int) -> list[Angles]:
        """cos and sin of one position for each rope, both [1, dim / 2]. Shared: they must not be changed."""
        table, row = divmod(position, _TABLE_ROWS)
        return self._rows(table)[row]

    def _compute(self, table: int) -> list[list[Angles]]:
        positions = np.arange(table * _TABLE_ROWS, (table + 1) * _TABLE_ROWS, dtype=np.int64)
        found = [angles(kind, positions, context=self._context) for kind in self._ropes]
        return [[(cos[n : n + 1], sin[n : n + 1]) for cos, sin in found] for n in range(_TABLE_ROWS)]
