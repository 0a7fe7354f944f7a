"""Configs and GGUF metadata with values that no model has: one typed error, before anything is made of their size."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from transformers import Gemma3TextConfig, GraniteConfig, LlamaConfig

from edge.errors import CheckpointError, EdgeError, UnsupportedError
from edge.rope import inverse_frequencies
from exporters.architectures import decoder_spec, describe, gemma2, gemma3, granite, llama, mistral, phi3, smollm3
from exporters.architectures.config import Config
from exporters.architectures.family import Family
from exporters.checkpoint import Checkpoint
from tests.exporters.tiny import tiny_gemma2, write_gguf
from tests.fuzz.limits import bounded_memory

Open = Callable[[Path], Checkpoint]
SIZES: dict[str, Any] = {
    "vocab_size": 300, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 4096,
}  # fmt: skip
HUGE = 10**400
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}


def spec_of(family: Family, **values: Any) -> Any:
    config = Config("config.json", {**SIZES, **values}, family.defaults)
    return decoder_spec(config, family)


@pytest.mark.parametrize(("family", "values", "message"), [
    (llama.FAMILY, {"num_hidden_layers": 2_000_000_000}, "num_hidden_layers .* it must be at most 4096"),
    (mistral.FAMILY, {"num_hidden_layers": 500_000_000}, "at most 4096"),
    (smollm3.FAMILY, {"num_hidden_layers": 500_000_000}, "at most 4096"),
    (llama.FAMILY, {"rms_norm_eps": HUGE}, "rms_norm_eps .* it must be a positive number"),
    (granite.FAMILY, {"attention_multiplier": HUGE}, "attention_multiplier"),
    (gemma2.FAMILY, {"attn_logit_softcapping": "x"}, "attn_logit_softcapping .* is 'x'; it must be a positive number"),
    (gemma3.FAMILY, {"final_logit_softcapping": [1]}, "final_logit_softcapping"),
    (gemma2.FAMILY, {"attn_logit_softcapping": True}, "attn_logit_softcapping"),
    (phi3.FAMILY, {"partial_rotary_factor": 1e299}, "a share of each head, at most 1"),
    (phi3.FAMILY, {"rope_scaling": LONGROPE, "original_max_position_embeddings": 1}, "more than one token"),
    (phi3.FAMILY, {"rope_scaling": {**LONGROPE, "long_factor": [HUGE] * 8}}, "it must be a list of positive numbers"),
    (llama.FAMILY, {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_slow": 5e-324}}, "frequency factors"),
])  # fmt: skip
def test_values_that_no_model_has(family: Family, values: dict[str, Any], message: str) -> None:
    with bounded_memory(256 << 20), pytest.raises(CheckpointError, match=message):
        spec_of(family, **values)


def test_a_softcap_of_zero_or_null_is_none() -> None:
    for nothing in (0, 0.0, None):
        assert spec_of(gemma2.FAMILY, attn_logit_softcapping=nothing).layers[0].attention.softcap is None
    assert spec_of(gemma2.FAMILY, attn_logit_softcapping=7).layers[0].attention.softcap == 7.0


@pytest.mark.parametrize(("key", "value"), [
    ("expert_count", [1, 2]), ("attention.causal", [True, False]), ("attention.value_length", [16, 8]),
    ("rope.scaling.attn_factor", "x"), ("rope.scaling.attn_factor", [1.0, 2.0]), ("rope.scaling.type", [1, 2]),
    ("rope.scaling.type", ["linear", "yarn"]), ("rope.scaling.factor", [1.0, 2.0]), ("rope.scale_linear", "x"),
    ("rope.dimension_count", [1, 2]), ("block_count", 2_000_000_000),
])  # fmt: skip
def test_metadata_of_another_kind(
    llama_folder: Path, tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch, key: str, value: Any
) -> None:
    checkpoint = opened(write_gguf(llama_folder, tmp_path / "m.gguf"))
    monkeypatch.setitem(checkpoint._metadata, f"llama.{key}", as_read(value))  # type: ignore[attr-defined]
    with bounded_memory(256 << 20), pytest.raises(EdgeError, match=r"m\.gguf: "):
        describe(checkpoint)


def as_read(value: Any) -> Any:
    """A metadata value as the container gives it: an array of numbers is numpy's."""
    return np.array(value) if isinstance(value, list) and not isinstance(value[0], str) else value


def test_c4_gguf_factor_without_a_type_is_linear(llama_folder: Path, tmp_path: Path, opened: Open) -> None:
    """llama.cpp takes the type for linear where none is written; a type of "none" turns the factor off."""
    for metadata, expected in (
        ({"rope.scaling.factor": 4.0}, ("linear", 4.0)),
        ({"rope.scaling.factor": 4.0, "rope.scale_linear": 2.0}, ("linear", 4.0)),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, ("default", 1.0)),
        ({"rope.scaling.original_context_length": 64}, ("default", 1.0)),
    ):
        rope = describe(opened(write_gguf(llama_folder, tmp_path / "m.gguf", metadata=metadata))).spec.ropes[0]
        assert (rope.kind, rope.factor) == expected


@pytest.mark.parametrize("name", ["rope_freqs.weight", "rope_factors_short.weight"])
def test_factors_for_a_head_that_no_model_has(llama_folder: Path, tmp_path: Path, opened: Open, name: str) -> None:
    checkpoint = opened(write_gguf(llama_folder, tmp_path / "m.gguf"))
    tensors = cast(dict[str, Any], checkpoint.tensors)
    wide = SimpleNamespace(name=name, shape=(1 << 30,), read=lambda: pytest.fail("read"))
    tensors |= (
        {"rope_factors_short.weight": wide, "rope_factors_long.weight": wide} if "short" in name else {name: wide}
    )
    with pytest.raises(CheckpointError, match=r"has the shape \[1073741824\]; no head is that wide"):
        describe(checkpoint)


def test_a_window_of_zero_in_a_gguf_file_is_none(tmp_path: Path, opened: Open) -> None:
    """And not the default of the family's class, which an absent key means."""
    folder = tiny_gemma2(tmp_path / "model", query_pre_attn_scalar=16)
    checkpoint = opened(write_gguf(folder, tmp_path / "m.gguf"))
    for window, expected in ((0, [None, None]), (8, [8, None])):
        checkpoint._metadata["gemma2.attention.sliding_window"] = window  # type: ignore[attr-defined]
        vars(checkpoint).pop("config", None)
        assert [layer.attention.window for layer in describe(checkpoint).spec.layers] == expected


def test_granite_without_a_scale_of_attention() -> None:
    """It means 1 in a config, and in a GGUF file what it means everywhere."""
    assert spec_of(granite.FAMILY).layers[0].attention.scale == GraniteConfig().attention_multiplier == 1.0
    config = Config("m.gguf", SIZES, {**granite.FAMILY.defaults, **granite.FAMILY.gguf_defaults})
    assert granite.FAMILY.fields(config)["layers"][0].attention.scale == 16**-0.5


OLD = {"rope_type": "linear", "factor": 4.0}


def test_c4_where_both_tables_are_written_transformers_decides() -> None:
    both = {"rope_scaling": OLD, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    expected = LlamaConfig(**SIZES, **json.loads(json.dumps(both))).rope_parameters
    rope = spec_of(llama.FAMILY, **both).ropes[0]
    assert (rope.kind, rope.factor, rope.theta) == (expected["rope_type"], expected["factor"], expected["rope_theta"])
    tables = {"full_attention": {"rope_type": "default", "rope_theta": 3e5}, "sliding_attention": {"rope_theta": 7e3}}
    both = {"rope_scaling": OLD, "rope_parameters": tables}
    found = Gemma3TextConfig(**SIZES, head_dim=16, **json.loads(json.dumps(both))).rope_parameters
    local, full = spec_of(gemma3.FAMILY, head_dim=16, **both).ropes
    assert (local.kind, local.theta) == ("default", found["sliding_attention"]["rope_theta"])
    named = found["full_attention"]
    assert (full.kind, full.factor, full.theta) == (named["rope_type"], named["factor"], named["rope_theta"])


def test_yarn_with_bounds_at_the_edge_of_what_is_allowed() -> None:
    wide = {"rope_type": "yarn", "factor": 4.0, "beta_slow": 2e-6, "beta_fast": 9e5}
    assert len(inverse_frequencies(spec_of(llama.FAMILY, rope_scaling=wide).ropes[0])) == 8
    with pytest.raises((CheckpointError, UnsupportedError)):
        spec_of(llama.FAMILY, rope_scaling={**wide, "beta_fast": 1e7})
