"""Frequencies against transformers' own, and angles at positions that float32 could not hold."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from edge.decoder import RopeSpec
from edge.rope import angles, inverse_frequencies

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
