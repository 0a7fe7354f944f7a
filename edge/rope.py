"""Rotary frequencies and angles. The one place that knows the formula of each rope kind."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from edge.decoder import RopeSpec


def inverse_frequencies(rope: RopeSpec) -> npt.NDArray[np.float64]:
    """Angles per position, [dim / 2].

    default: theta^(-2i/dim) (RoFormer, arXiv:2104.09864); linear: divided by `factor`; llama3: three bands by
    wavelength, as in Llama 3.1: short waves kept, long ones divided by `factor`, between them a linear blend.
    """
    plain = rope.theta ** (-np.arange(0, rope.dim, 2, dtype=np.float64) / rope.dim)
    if rope.kind == "linear":
        return np.asarray(plain / rope.factor)
    if rope.kind == "llama3":
        turns = rope.original_context * plain / (2 * math.pi)
        blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
        keep = np.clip(blend, 0.0, 1.0)
        return np.asarray(plain * keep + plain / rope.factor * (1.0 - keep))
    return np.asarray(plain)


def angles(rope: RopeSpec, positions: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """cos and sin for each position, both [positions, dim / 2]: computed in float64, so a position of 10^9 is exact."""
    phase = positions[:, None].astype(np.float64) * inverse_frequencies(rope)[None, :]
    return np.cos(phase).astype(np.float32), np.sin(phase).astype(np.float32)
