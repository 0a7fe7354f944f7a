"""Ropes read from folders and GGUF files: frequencies equal to transformers' and llama.cpp's own."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from edge.errors import CheckpointError, UnsupportedError
from edge.rope import inverse_frequencies
from exporters.architectures import describe
from tests.exporters.architectures.editing import Open, edit_config, edit_weights
from tests.exporters.tiny import tiny_llama, write_gguf

LLAMA3 = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def rotary_of_transformers(folder: Path) -> LlamaRotaryEmbedding:
    return LlamaRotaryEmbedding(AutoConfig.from_pretrained(folder))


def frequencies_of_transformers(folder: Path) -> np.ndarray:
    return rotary_of_transformers(folder).inv_freq.double().numpy()


SHORT, LONG = np.linspace(1, 3, 32).tolist(), np.linspace(1, 50, 32).tolist()
SCALINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "llama3": LLAMA3,
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 32768},
    "yarn mscale": {"factor": 40.0, "mscale": 1.5, "mscale_all_dim": 0.8, "beta_fast": 16},
    "yarn attention_factor": {"factor": 8.0, "attention_factor": 1.2, "original_max_position_embeddings": 8192},
    "longrope": {"short_factor": SHORT, "long_factor": LONG, "original_max_position_embeddings": 4096},
    "longrope factor": {"short_factor": SHORT, "long_factor": LONG, "original_max_position_embeddings": 4096,
                        "factor": 8.0},
}  # fmt: skip


@pytest.mark.parametrize("layout", ["rope_parameters", "rope_scaling rope_type", "rope_scaling type"])
@pytest.mark.parametrize("case", SCALINGS)
def test_c4_frequencies_equal_transformers(folder: Path, opened: Open, layout: str, case: str) -> None:
    kind, factors = case.split(maxsplit=1)[0], SCALINGS[case]
    edit_config(folder, head_dim=64, max_position_embeddings=131072)
    if layout == "rope_parameters":
        edit_config(folder, rope_parameters={"rope_type": kind, "rope_theta": 500000.0, **factors})
    else:
        spelling = layout.split()[1]
        edit_config(folder, "rope_parameters", rope_theta=500000.0, rope_scaling={spelling: kind, **factors})
    expected = rotary_of_transformers(folder)
    edit_weights(folder, widen_heads)
    rope = describe(opened(folder)).spec.ropes[0]
    assert rope.kind == kind
    frequencies = expected.inv_freq.double().numpy()
    np.testing.assert_allclose(inverse_frequencies(rope), frequencies, rtol=1e-6, atol=0)
    assert rope.attention_factor == pytest.approx(expected.attention_scaling, rel=1e-6)
    plain = kind in ("default", "dynamic")  # within the trained context dynamic changes nothing
    assert plain == np.allclose(frequencies, 500000.0 ** (-np.arange(32) / 32), rtol=1e-6)


def test_c4_original_context_beside_the_table_counts_more(folder: Path, opened: Open) -> None:
    """As in Phi-3's configs; transformers rules the same."""
    edit_config(folder, head_dim=64, original_max_position_embeddings=2048, rope_parameters={
        "rope_type": "longrope", "rope_theta": 1e4, "short_factor": SHORT, "long_factor": LONG,
        "original_max_position_embeddings": 512,
    })  # fmt: skip
    edit_weights(folder, widen_heads)
    rope = describe(opened(folder)).spec.ropes[0]
    assert rope.original_context == 2048
    assert rope.attention_factor == pytest.approx(rotary_of_transformers(folder).attention_scaling, rel=1e-6)


def widen_heads(weights: dict[str, torch.Tensor]) -> None:
    """Give q, k, v and o the shapes of a head_dim of 64."""
    for name in list(weights):
        for part, heads in (("q", 4), ("k", 2), ("v", 2)):
            if f"{part}_proj" in name:
                weights[name] = torch.zeros(heads * 64, 64)
        if "o_proj" in name:
            weights[name] = torch.zeros(64, 4 * 64)


@pytest.mark.parametrize("kind", ["ntk", "proportional", "su"])
def test_c4_unknown_rope_types_are_named(folder: Path, opened: Open, kind: str) -> None:
    for key in ("type", "rope_type"):
        edit_config(folder, rope_parameters=None, rope_scaling={key: kind, "factor": 4.0})
        with pytest.raises(UnsupportedError, match=f"rope type '{kind}' is not known; known are default, linear"):
            describe(opened(folder))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rope_type": "llama3", "factor": 8.0}, "low_freq_factor in the model's config is missing"),
        (
            {**LLAMA3, "rope_type": "llama3", "high_freq_factor": 1.0},
            "the bounds of its blend are 1.0 and 1.0 rotations",
        ),
        ({"rope_type": "linear"}, "factor in the model's config is missing"),
        ({"rope_type": "dynamic"}, "factor in the model's config is missing"),
        ({"rope_type": "yarn", "factor": 4.0, "truncate": False}, "yarn without truncation"),
        ({"rope_type": "yarn", "factor": 4.0, "beta_fast": 1}, "the bounds of its blend are 1.0 and 1.0 rotations"),
        ({"rope_type": "longrope", "long_factor": [1.0] * 8}, "short_factor in the model's config is missing"),
        ({"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": ["1"]}, "a list of positive numbers"),
        (
            {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.0]},
            "1 factors for rope kind longrope",
        ),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "rope over 0.5 of each head"),
        ({"full_attention": {"rope_type": "default"}}, "differ between layer types"),
        ({"rope_type": "default", "rope_theta": -1}, "rope_theta in the model's config is -1"),
    ],
)
def test_c4_incomplete_rope_parameters(folder: Path, opened: Open, values: dict[str, Any], message: str) -> None:
    edit_config(folder, rope_parameters=values)
    with pytest.raises((CheckpointError, UnsupportedError), match=message):
        describe(opened(folder))


def llama_cpp_factors(theta: float, dim: int) -> np.ndarray:
    """What llama.cpp's converter stores for Llama 3.2, in its own float32 steps."""
    frequencies = 1.0 / (theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))
    factors = []
    for wavelength in (2 * torch.pi / frequencies).tolist():
        smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
        inside = 1.0 / ((1 - smooth) / 32.0 + smooth)
        factors.append(1.0 if wavelength < 8192 / 4 else 32.0 if wavelength > 8192 else inside)
    return np.array(factors, np.float32)


def test_c4_gguf_frequency_factors(tmp_path: Path, opened: Open) -> None:
    parameters = {"rope_type": "llama3", "rope_theta": 500000.0, **LLAMA3}
    folder = tiny_llama(tmp_path / "model", head_dim=64, max_position_embeddings=131072, rope_parameters=parameters)
    factors = llama_cpp_factors(500000.0, 64)
    assert np.any((factors > 1) & (factors < 32)), "all three bands are there"
    model = describe(opened(write_gguf(folder, tmp_path / "m.gguf", rope_factors=factors)))
    assert model.spec.ropes == describe(opened(folder)).spec.ropes
    np.testing.assert_allclose(
        inverse_frequencies(model.spec.ropes[0]), frequencies_of_transformers(folder), rtol=1e-6, atol=0
    )
    ones = describe(opened(write_gguf(folder, tmp_path / "ones.gguf", rope_factors=np.ones(32, np.float32))))
    assert ones.spec.ropes[0].kind == "default"
    factors[np.flatnonzero((factors > 1) & (factors < 32))[0]] *= 1.01
    with pytest.raises(UnsupportedError, match=r"rope_freqs\.weight holds frequency factors up to 32 that are not"):
        describe(opened(write_gguf(folder, tmp_path / "odd.gguf", rope_factors=factors)))


def test_c4_gguf_scaling_keys(llama_folder: Path, tmp_path: Path, opened: Open) -> None:
    linear = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    for metadata in (linear, {"rope.scale_linear": 4.0}):
        rope = describe(opened(write_gguf(llama_folder, tmp_path / "m.gguf", metadata=metadata))).spec.ropes[0]
        assert (rope.kind, rope.factor) == ("linear", 4.0)
    yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 1024}
    for attention in ({}, {"rope.scaling.attn_factor": 1.0}, {"rope.scaling.yarn_attn_factor": 1.1386294}):
        file = write_gguf(llama_folder, tmp_path / "m.gguf", metadata={**yarn, **attention})
        rope = describe(opened(file)).spec.ropes[0]
        assert (rope.kind, rope.factor, rope.original_context) == ("yarn", 4.0, 1024)
        assert rope.attention_factor == pytest.approx(0.1 * math.log(4) + 1)
    refused = {
        r"rope\.scaling\.yarn_attn_factor is 1\.3": {**yarn, "rope.scaling.yarn_attn_factor": 1.3},
        r"rope\.scaling\.yarn_log_multiplier is 0\.1": {**yarn, "rope.scaling.yarn_log_multiplier": 0.1},
        r"final_logit_softcapping is 30\.0": {"final_logit_softcapping": 30.0},
        "rope type 'ntk' is not known": {"rope.scaling.type": "ntk", "rope.scaling.factor": 4.0},
        r"llama\.rope\.scaling\.attn_factor is 1\.5": {"rope.scaling.attn_factor": 1.5},
        r"llama\.expert_count is 8": {"expert_count": 8},
        r"llama\.logit_scale is 0\.5": {"logit_scale": 0.5},
        "heads of 16 for keys but 8 for values": {"attention.value_length": 8},
    }
    for message, metadata in refused.items():
        with pytest.raises(UnsupportedError, match=message):
            describe(opened(write_gguf(llama_folder, tmp_path / "m.gguf", metadata=metadata)))
