"""Frequencies against transformers' own, and angles at positions that float32 could not hold."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from edge.decoder import RopeSpec
from edge.rope import AngleTable, angles, inverse_frequencies, rotations

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize(("kind", "extra"), [("linear", {"factor": 4.0}), ("llama3", LLAMA3)])
def test_frequencies_are_those_of_transformers(kind: str, extra: dict[str, Any], dim: int) -> None:
    config = LlamaConfig(
        hidden_size=8 * dim, num_attention_heads=8, head_dim=dim, max_position_embeddings=131072,
        rope_parameters={"rope_type": kind, "rope_theta": 500_000.0, **extra},
    )  # fmt: skip
    expected, factor = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
    assert factor == 1.0
    ours = {**extra}
    original = ours.pop("original_max_position_embeddings", 0)
    spec = RopeSpec(dim, 500_000.0, kind, original_context=int(original), **ours)  # type: ignore[arg-type]
    np.testing.assert_allclose(inverse_frequencies(spec), expected.numpy(), rtol=1e-6)


def of_transformers(kind: str, context: int | None = None, **extra: Any) -> tuple[np.ndarray, float]:
    """Frequencies and attention factor of transformers for a head of 64 and 256 trained positions."""
    config = LlamaConfig(
        hidden_size=512, num_attention_heads=8, max_position_embeddings=256,
        rope_parameters={"rope_type": kind, "rope_theta": 1e5, **extra},
    )  # fmt: skip
    frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=context)
    return frequencies.numpy(), factor


@pytest.mark.parametrize("factor", [2.0, 4.0, 40.0])
@pytest.mark.parametrize(("slow", "fast"), [(1.0, 32.0), (0.5, 4.0), (30.0, 31.0)])
def test_yarn_is_that_of_transformers(factor: float, slow: float, fast: float) -> None:
    """The last pair of bounds falls on one dimension: a step instead of a blend."""
    named = {"factor": factor, "beta_slow": slow, "beta_fast": fast, "original_max_position_embeddings": 2048}
    expected, _ = of_transformers("yarn", **named)
    spec = RopeSpec(64, 1e5, "yarn", factor, slow, fast, 2048)
    np.testing.assert_allclose(inverse_frequencies(spec), expected, rtol=1e-6)


@pytest.mark.parametrize("context", [0, 100, 256, 257, 1000, 100_000])
def test_dynamic_follows_the_planned_context(context: int) -> None:
    expected, _ = of_transformers("dynamic", context, factor=3.0)
    spec = RopeSpec(64, 1e5, "dynamic", 3.0, original_context=256)
    np.testing.assert_allclose(inverse_frequencies(spec, context=context), expected, rtol=1e-6)


@pytest.mark.parametrize("context", [0, 64, 65, 256])
def test_longrope_follows_the_planned_context(context: int) -> None:
    short, long = np.linspace(1, 2, 32).tolist(), np.linspace(1, 60, 32).tolist()
    expected, _ = of_transformers(
        "longrope", context, short_factor=short, long_factor=long, original_max_position_embeddings=64
    )
    spec = RopeSpec(64, 1e5, "longrope", original_context=64, short_factors=tuple(short), long_factors=tuple(long))
    np.testing.assert_allclose(inverse_frequencies(spec, context=context), expected, rtol=1e-6)


def test_the_attention_factor_is_in_angles_and_not_in_turns() -> None:
    spec = RopeSpec(4, 10_000.0, "yarn", 4.0, 1.0, 32.0, 64, attention_factor=1.25)
    positions = np.array([0, 3], np.int64)
    for scaled, plain in zip(angles(spec, positions), rotations(spec, positions), strict=True):
        np.testing.assert_allclose(scaled, plain * 1.25, rtol=1e-6)
    assert angles(spec, positions)[0][0].tolist() == [1.25, 1.25]
    assert rotations(spec, positions)[0][0].tolist() == [1.0, 1.0]


def test_default_frequencies_by_hand() -> None:
    assert inverse_frequencies(RopeSpec(4, 10_000.0)).tolist() == pytest.approx([1.0, 0.01])


def test_angles_are_exact_far_from_the_origin() -> None:
    """At position 10^9 a float32 phase would be off by tens of radians."""
    position = 1_000_000_007
    cos, sin = angles(RopeSpec(4, 10_000.0), np.array([0, position], np.int64))
    assert cos.shape == sin.shape == (2, 2)
    assert cos.dtype == np.float32
    assert (cos[0].tolist(), sin[0].tolist()) == ([1.0, 1.0], [0.0, 0.0])
    # The reduction is exact for the first frequency, which is 1.
    assert cos[1, 0] == pytest.approx(math.cos(position), abs=1e-6)
    assert sin[1, 1] == pytest.approx(math.sin(position / 100), abs=1e-5)


def test_angles_of_one_position_after_another_are_those_of_many() -> None:
    ropes = (RopeSpec(8, 10_000.0), RopeSpec(4, 1e6, "dynamic", factor=2.0, original_context=50))
    table = AngleTable(ropes, context=100)
    for position in (0, 1, 63, 64, 65, 200, 3, 10**9, 10**9 + 64):
        found = table.row(position)
        assert len(found) == 2
        for (cos, sin), rope in zip(found, ropes, strict=True):
            expected = angles(rope, np.array([position]), context=100)
            np.testing.assert_array_equal(cos, expected[0])
            np.testing.assert_array_equal(sin, expected[1])
