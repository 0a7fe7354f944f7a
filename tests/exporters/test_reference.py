"""The reference interpreter against transformers, on seeded models whose attention is peaked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from edge import payload
from edge.graph import build
from edge.payload import Scheme
from exporters import reference
from exporters.architectures import describe
from exporters.checkpoint import Checkpoint
from exporters.parity import source_reader
from exporters.reference import Reference, state
from tests.exporters import tiny
from tests.exporters.tiny import load_reference, tiny_llama, tiny_mistral, tiny_qwen2, write_gguf

Opener = Callable[[Path], Checkpoint]
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
DEFAULT = {"rope_type": "default", "rope_theta": 1e4}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
MSCALE = {**YARN, "mscale_all_dim": 1.0}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 64,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.5, 1.7, 1.9, 2.1], "long_factor": [1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 9.0, 12.0],
}  # fmt: skip
PHI = {"original_max_position_embeddings": 64, "rope_parameters": LONGROPE}
# family, config, how many tokens
CASES: dict[str, tuple[Callable[..., Path], dict[str, Any], int]] = {
    "llama": (tiny_llama, {}, 40),
    "llama-head-dim": (tiny_llama, {"head_dim": 32}, 40),
    "llama-tied-biased": (tiny_llama, {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}, 40),
    "llama-linear-rope": (
        tiny_llama,
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
        90,
    ),
    "llama3-rope": (tiny_llama, {"rope_parameters": LLAMA3}, 200),
    "llama-one-kv-head": (tiny_llama, {"num_key_value_heads": 1}, 40),
    "qwen2": (tiny_qwen2, {}, 40),
    "qwen2-head-dim": (tiny_qwen2, {"num_attention_heads": 2, "num_key_value_heads": 1}, 40),
    "llama-yarn": (tiny_llama, {"rope_parameters": YARN}, 90),
    "llama-dynamic": (tiny_llama, {"rope_parameters": DYNAMIC, "max_position_embeddings": 32}, 90),
    "mistral-window": (tiny_mistral, {"sliding_window": 8}, 40),
    "ministral": (
        tiny.tiny_ministral,
        {"sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"]},
        40,
    ),
    "qwen3": (tiny.tiny_qwen3, {}, 40),
    "gemma": (tiny.tiny_gemma, {}, 40),
    "gemma2": (tiny.tiny_gemma2, {}, 40),
    "gemma3": (tiny.tiny_gemma3, {}, 40),
    "gemma3-linear": (
        tiny.tiny_gemma3,
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1e5, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
            }
        },
        40,
    ),
    "gemma3-vision": (tiny.tiny_gemma3_vision, {}, 40),
    "phi3": (tiny.tiny_phi3, {"sliding_window": 12}, 40),
    "phi3-longrope-short": (tiny.tiny_phi3, PHI, 64),
    "phi3-longrope-long": (tiny.tiny_phi3, PHI, 65),
    "phi4-mini": (
        tiny.tiny_phi3,
        {
            **PHI,
            "rope_parameters": {
                **LONGROPE,
                "partial_rotary_factor": 0.5,
                "short_factor": LONGROPE["short_factor"][:4],
                "long_factor": LONGROPE["long_factor"][:4],
            },
        },
        70,
    ),
    "smollm3": (tiny.tiny_smollm3, {}, 40),
    "smollm3-window": (tiny.tiny_smollm3, {"use_sliding_window": True, "sliding_window": 8}, 40),
    "olmo2": (tiny.tiny_olmo2, {}, 40),
    "olmo3": (tiny.tiny_olmo3, {}, 40),
    "olmo3-yarn": (tiny.tiny_olmo3, {"rope_parameters": {"full_attention": YARN, "sliding_attention": DEFAULT}}, 90),
    "granite": (tiny.tiny_granite, {}, 40),
    "qwen3-moe": (tiny.tiny_qwen3_moe, {}, 40),
    "qwen3-moe-unnormalized": (tiny.tiny_qwen3_moe, {"norm_topk_prob": False, "decoder_sparse_step": 2}, 40),
    "olmoe": (tiny.tiny_olmoe, {}, 40),
    "granitemoe": (tiny.tiny_granitemoe, {}, 40),
    "deepseek-v2-lite": (tiny.tiny_deepseek_v2, {}, 40),
    "deepseek-v2": (
        tiny.tiny_deepseek_v2,
        {
            "q_lora_rank": 48, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2,
            "routed_scaling_factor": 4.0,
        },
        40,
    ),
    "deepseek-v2-yarn": (tiny.tiny_deepseek_v2, {"rope_parameters": {**MSCALE, "mscale": 0.7}}, 90),
    "deepseek-v3": (tiny.tiny_deepseek_v3, {}, 40),
    "deepseek-v3-yarn": (tiny.tiny_deepseek_v3, {"rope_parameters": {**MSCALE, "mscale": 1.0}}, 90),
}  # fmt: skip


def random_ids(count: int, seed: int = 0) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(3, 300, count)]


def reference_of(checkpoint: Checkpoint, context: int = 0) -> Reference:
    model = describe(checkpoint)
    return Reference(build(model.spec), source_reader(model.weights), context=context)


@pytest.mark.parametrize("case", CASES)
def test_c6_logits_equal_transformers(case: str, tmp_path: Path, opened: Opener) -> None:
    make, config, count = CASES[case]
    folder = make(tmp_path / "model", **config)
    ids = random_ids(count)
    model = load_reference(folder).double()  # in float32 it rounds as much as we do
    with torch.no_grad():
        expected = model(torch.tensor([ids]), output_attentions=True)
    logits = expected.logits[0].numpy()
    assert logits.std() > 1
    assert torch.stack(expected.attentions).amax(-1).median() > 0.5, "attention must be peaked for this to mean much"
    # Of the logits' deviation (1 to 5): our own rounding is up to 0.7e-4 of that, and varies with the process.
    assert np.abs(reference_of(opened(folder), count).run(ids) - logits).max() < 1e-4 * logits.std()


# GGUF files keep no scale of queries: it is the heads' own (N38: 32 here, while hidden / heads is 16).
SCALED = {"query_pre_attn_scalar": 32}
CONVERTED: dict[str, tuple[Callable[..., Path], dict[str, Any]]] = {
    "llama": (tiny_llama, {}),
    "llama-linear": (tiny_llama, {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "qwen2": (tiny_qwen2, {}),
    "qwen3": (tiny.tiny_qwen3, {}),
    "qwen3-yarn": (tiny.tiny_qwen3, {"rope_parameters": YARN}),
    "gemma": (tiny.tiny_gemma, {}),
    "gemma2": (tiny.tiny_gemma2, SCALED),
    "gemma3": (tiny.tiny_gemma3, SCALED),
    "phi3": (tiny.tiny_phi3, {}),
    "phi3-window": (tiny.tiny_phi3, {"sliding_window": 12}),
    "phi3-longrope": (tiny.tiny_phi3, PHI),
    "phi4-mini": CASES["phi4-mini"][:2],
    "smollm3": (tiny.tiny_smollm3, {"num_hidden_layers": 5, "no_rope_layer_interval": 4}),
    "olmo2": (tiny.tiny_olmo2, {}),
    "olmo3": (tiny.tiny_olmo3, {"layer_types": ["full_attention", *["sliding_attention"] * 3]}),
    "olmo3-yarn": CASES["olmo3-yarn"][:2],
    "granite": (tiny.tiny_granite, {}),
    "qwen3-moe": (tiny.tiny_qwen3_moe, {"mlp_only_layers": []}),
    "olmoe": (tiny.tiny_olmoe, {}),
    "granitemoe": (tiny.tiny_granitemoe, {}),
}


@pytest.mark.parametrize("case", CONVERTED)
def test_c7_logits_from_gguf_equal_those_from_safetensors(case: str, tmp_path: Path, opened: Opener) -> None:
    make, config = CONVERTED[case]
    folder = make(tmp_path / "model", **config)
    ids = random_ids(70)
    gguf = write_gguf(folder, tmp_path / "model.gguf")
    expected = reference_of(opened(folder), 70).run(ids)
    found = reference_of(opened(gguf), 70).run(ids)
    # GGUF files hold longrope's factors in float32.
    assert np.array_equal(found, expected) or ("phi" in case and np.abs(found - expected).max() < 1e-4 * expected.std())


def test_codes_of_experts_are_carried(tmp_path: Path, opened: Opener) -> None:
    """Each expert's Q4_0 codes are those of its rows in the file, whichever rows are read."""
    folder = tiny.tiny_olmoe(tmp_path / "model", intermediate_size=64)
    model = describe(opened(write_gguf(folder, tmp_path / "model.gguf", quantization="Q4_0")))
    up = model.weights["layers.1.mlp.experts.up"]
    assert (up.shape, up.scheme) == ((8 * 64, 64), Scheme(4, 32, "sym"))
    source = load_reference(folder).model.layers[1].mlp.experts.gate_up_proj.detach().numpy()[:, 64:]
    expected = dequantize(quantize(source, GGMLQuantizationType.Q4_0), GGMLQuantizationType.Q4_0).reshape(512, 64)
    np.testing.assert_array_equal(up.read(), expected)
    codes = up.codes(60, 200)
    np.testing.assert_array_equal(payload.dequantize(Scheme(4, 32, "sym"), codes, 64), expected[60:200])


def test_c4_position_3000_equals_transformers(tmp_path: Path, opened: Opener) -> None:
    folder = tiny_llama(tmp_path / "model", rope_parameters=LLAMA3)
    ids = random_ids(3001)
    with torch.no_grad():
        expected = load_reference(folder)(torch.tensor([ids])).logits[0, 3000].numpy()
    found = reference_of(opened(folder)).run(ids, last=True)[0]
    # transformers computes angles in float32: at position 3000 that alone moves a phase by about 1e-4.
    assert np.abs(found - expected).max() < 5e-3 * expected.std()


def test_prefill_in_pieces_equals_prefill_at_once(llama_folder: Path, opened: Opener) -> None:
    ids = random_ids(50)
    model = reference_of(opened(llama_folder))
    whole = model.run(ids)
    model.reset()
    pieces = [model.run(ids[start : start + 7]) for start in range(0, 50, 7)]
    assert np.abs(np.concatenate(pieces) - whole).max() < 1e-4
    model.reset()
    last = model.run(ids, last=True)
    assert last.shape == (1, 300)
    assert np.abs(last - whole[-1:]).max() < 1e-4


def test_streaming_weights_gives_the_same_logits(
    llama_folder: Path, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = random_ids(20)
    whole = reference_of(opened(llama_folder)).run(ids)
    monkeypatch.setattr(reference, "KEEP_LIMIT", 0)
    monkeypatch.setattr(state, "BLOCK", 64 * 10)
    streamed = reference_of(opened(llama_folder))
    assert np.abs(streamed.run(ids) - whole).max() < 1e-4
    assert streamed._weights._kept == {}
