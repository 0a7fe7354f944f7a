"""Families read from folders and GGUF files: specs and weights equal to transformers' own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize as gguf_dequantize
from gguf.quants import quantize as gguf_quantize
from safetensors.torch import load_file
from transformers import AutoConfig

from edge.errors import CheckpointError, UnsupportedError
from edge.graph import build
from edge.kv import plan_layout
from edge.layers import Dense, Gqa, LayerSpec
from edge.payload import dequantize
from exporters.architectures import describe
from exporters.checkpoint import Checkpoint
from tests.exporters.architectures.editing import Open, edit_config, edit_weights
from tests.exporters.tiny import load_reference, tiny_gemma3, tiny_llama, tiny_mistral, tiny_qwen2, write_gguf


def assert_same_weights(checkpoint: Checkpoint, folder: Path) -> None:
    """Every weight of the graph equals the parameter of transformers' model that does its work."""
    model = describe(checkpoint)
    reference = load_reference(folder)
    layer = reference.model.layers[1]
    spot_checks = {
        "embed": reference.model.embed_tokens.weight,
        "norm": reference.model.norm.weight,
        "layers.1.attn_norm": layer.input_layernorm.weight,
        "layers.1.mlp_norm": layer.post_attention_layernorm.weight,
        "layers.1.mlp.gate": layer.mlp.gate_proj.weight,
        "layers.1.mlp.up": layer.mlp.up_proj.weight,
        "layers.1.mlp.down": layer.mlp.down_proj.weight,
    }
    for part in "qkvo":
        module = getattr(layer.self_attn, f"{part}_proj")
        spot_checks[f"layers.1.attn.{part}"] = module.weight
        if module.bias is not None:
            spot_checks[f"layers.1.attn.{part}.bias"] = module.bias
    if not model.spec.tied_head:
        spot_checks["head"] = reference.lm_head.weight
    for name, parameter in spot_checks.items():
        np.testing.assert_array_equal(model.weights[name].read(), parameter.detach().numpy(), err_msg=name)
    assert model.weights.keys() == {weight.name for weight in build(model.spec).weights}
    assert {name for name in model.weights if name.startswith("layers.1.")} == spot_checks.keys() - {
        "embed",
        "norm",
        "head",
    }


# ---- what a config says ----


def test_llama_spec(llama_folder: Path, opened: Open) -> None:
    spec = describe(opened(llama_folder)).spec
    config = AutoConfig.from_pretrained(llama_folder)
    assert spec.family == "llama"
    assert (spec.vocab_size, spec.hidden_size, spec.tied_head) == (300, 64, False)
    assert spec.layers == (LayerSpec(Gqa(heads=4, kv_heads=2, head_dim=16, scale=16**-0.5), Dense(96)),) * 2
    assert (spec.context, spec.norm_eps) == (4096, config.rms_norm_eps)
    assert_same_weights(opened(llama_folder), llama_folder)


def test_c6_head_dim_is_the_configs(tmp_path: Path, opened: Open) -> None:
    folder = tiny_llama(tmp_path / "model", head_dim=32)
    for source in (folder, write_gguf(folder, tmp_path / "m.gguf")):
        spec = describe(opened(source)).spec
        attention = spec.layers[0].attention
        assert (attention.head_dim, attention.scale, spec.ropes[0].dim) == (32, 32**-0.5, 32)
        assert_same_weights(opened(source), folder)
    edit_config(folder, "head_dim", num_attention_heads=5)
    with pytest.raises(CheckpointError, match="no head_dim, and 5 heads do not divide hidden_size 64"):
        describe(opened(folder))


def test_c6_qwen2_biases(qwen2_folder: Path, tmp_path: Path, opened: Open) -> None:
    assert describe(opened(qwen2_folder)).spec.layers[0].attention.qkv_bias
    bias = describe(opened(qwen2_folder)).weights["layers.0.attn.k.bias"].read()
    assert np.abs(bias).min() > 0
    assert_same_weights(opened(qwen2_folder), qwen2_folder)
    assert_same_weights(opened(write_gguf(qwen2_folder, tmp_path / "m.gguf")), qwen2_folder)


def test_c6_llama_biases(tmp_path: Path, opened: Open) -> None:
    folder = tiny_llama(tmp_path / "model", attention_bias=True, mlp_bias=True)
    for source in (folder, write_gguf(folder, tmp_path / "m.gguf")):
        model = describe(opened(source))
        layer = model.spec.layers[0]
        assert (layer.attention.qkv_bias, layer.attention.output_bias, layer.mlp.bias) == (True, True, True)
        expected = load_reference(folder).model.layers[1]
        for name, module in (("attn.q", expected.self_attn.q_proj), ("attn.k", expected.self_attn.k_proj),
                             ("attn.o", expected.self_attn.o_proj), ("mlp.down", expected.mlp.down_proj)):  # fmt: skip
            bias = model.weights[f"layers.1.{name}.bias"].read()
            np.testing.assert_array_equal(bias, module.bias.detach().numpy(), err_msg=name)


def test_windows_of_qwen2_and_mistral(tmp_path: Path, opened: Open) -> None:
    qwen = tiny_qwen2(tmp_path / "q", use_sliding_window=True, sliding_window=8, max_window_layers=1)
    off = tiny_qwen2(tmp_path / "o", use_sliding_window=False, sliding_window=8, max_window_layers=1)
    mistral = tiny_mistral(tmp_path / "m", sliding_window=12)
    unbounded = tiny_mistral(tmp_path / "u", sliding_window=None)
    expected = {qwen: [None, 8], off: [None, None], mistral: [12, 12], unbounded: [None, None]}
    for folder, windows in expected.items():
        assert [layer.attention.window for layer in describe(opened(folder)).spec.layers] == windows
    edit_config(qwen, "layer_types")  # as transformers before version 5 wrote it
    assert [layer.attention.window for layer in describe(opened(qwen)).spec.layers] == [None, 8]
    edit_config(qwen, layer_types=["full_attention", "linear_attention"])
    with pytest.raises(UnsupportedError, match="layers of type 'linear_attention'"):
        describe(opened(qwen))
    edit_config(mistral, "sliding_window", "num_key_value_heads")  # transformers' defaults: 4096 and 8
    with pytest.raises(CheckpointError, match="4 heads cannot be grouped over 8 kv heads"):
        describe(opened(mistral))


def test_a_window_as_long_as_the_context_makes_one_ring(tmp_path: Path, opened: Open) -> None:
    sizes = {"sliding_window": 64, "max_position_embeddings": 64}
    whole = describe(opened(tiny_gemma3(tmp_path / "whole", **sizes))).spec
    assert [layer.attention.window for layer in whole.layers] == [None] * 3
    assert [layer.attention.rope for layer in whole.layers] == [0, 0, 1]  # the kinds still differ in their ropes
    assert len(plan_layout(whole, 64).rings) == 1
    sizes["max_position_embeddings"] = 65
    assert len(plan_layout(describe(opened(tiny_gemma3(tmp_path / "less", **sizes))).spec, 65).rings) == 2


def test_unknown_architecture_lists_the_known(folder: Path, opened: Open) -> None:
    edit_config(folder, architectures=["GPT9ForCausalLM"])
    with pytest.raises(UnsupportedError, match=r"'GPT9ForCausalLM' is not supported; .* LlamaForCausalLM, Ministral"):
        describe(opened(folder))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hidden_size": "64"}, "hidden_size in the model's config is '64'; it must be a positive whole number"),
        ({"num_hidden_layers": None}, "num_hidden_layers in the model's config is missing"),
        ({"rms_norm_eps": 0}, "rms_norm_eps in the model's config is 0"),
        ({"attention_bias": "no"}, "attention_bias in the model's config is 'no'; it must be true or false"),
        ({"head_dim": 15}, "rope over 15 dimensions"),
        ({"hidden_act": "relu"}, "activation 'relu' is not known; known are silu"),
        (
            {"quantization_config": {"quant_method": "hqq"}},
            "by 'hqq', which cannot be read; known are awq, .* export from",
        ),
        ({"num_hidden_layers": 3}, r"layers\.2\.attn_norm is missing: .* 'model\.layers\.2\.input_layernorm\.weight'"),
        ({"intermediate_size": 128}, r"mlp\.gate_proj\.weight' has the shape \[96, 64\].*\[128, 64\]"),
        ({"num_hidden_layers": 1}, r"tensor 'model\.layers\.1\.\S+ and 8 more would be ignored"),
        ({"attention_bias": True}, r"layers\.0\.attn\.q\.bias is missing"),
    ],
)
def test_configs_that_do_not_fit(folder: Path, opened: Open, values: dict[str, Any], message: str) -> None:
    edit_config(folder, **values)
    with pytest.raises((CheckpointError, UnsupportedError), match=message):
        describe(opened(folder))


def test_stored_inverse_frequencies_are_no_leftover(folder: Path, opened: Open) -> None:
    edit_weights(folder, lambda w: w.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}))
    assert_same_weights(opened(folder), folder)


# ---- the head ----


def test_c1_untied_and_stored(folder: Path, opened: Open) -> None:
    edit_config(folder, tie_word_embeddings=False)
    model = describe(opened(folder))
    assert not model.spec.tied_head
    np.testing.assert_array_equal(
        model.weights["head"].read(), load_file(folder / "model.safetensors")["lm_head.weight"].numpy()
    )


def test_c1_tied_and_absent(folder: Path, opened: Open) -> None:
    edit_weights(folder, lambda weights: weights.pop("lm_head.weight"))
    edit_config(folder, tie_word_embeddings=True)
    model = describe(opened(folder))
    assert model.spec.tied_head
    assert "head" not in model.weights


def test_c1_tied_but_stored_and_different_is_used(folder: Path, opened: Open) -> None:
    edit_config(folder, tie_word_embeddings=True)
    model = describe(opened(folder))
    assert not model.spec.tied_head
    assert model.weights["head"].name == "lm_head.weight"


@pytest.mark.parametrize("flag", [True, False])
def test_c1_stored_but_identical_is_tied(folder: Path, opened: Open, flag: bool) -> None:
    def copy_embedding(weights: dict[str, torch.Tensor]) -> None:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()

    edit_weights(folder, copy_embedding)
    edit_config(folder, tie_word_embeddings=flag)
    assert describe(opened(folder)).spec.tied_head
    edit_weights(folder, lambda weights: weights["lm_head.weight"][299].add_(1e-3))  # the very last row differs
    assert not describe(opened(folder)).spec.tied_head


def test_c1_untied_and_absent_is_an_error(folder: Path, opened: Open) -> None:
    edit_weights(folder, lambda weights: weights.pop("lm_head.weight"))
    for change in ({"tie_word_embeddings": False}, {"tie_word_embeddings": None}):
        edit_config(folder, **change)
        with pytest.raises(CheckpointError, match=r"no output head: .* 'lm_head\.weight'"):
            describe(opened(folder))


def test_n4_tied_weights_under_the_name_of_the_head(tmp_path: Path, opened: Open) -> None:
    folder = tiny_llama(tmp_path / "model", tie_word_embeddings=True)
    expected = load_reference(folder).lm_head.weight.detach().numpy()

    def rename(weights: dict[str, torch.Tensor]) -> None:
        weights["lm_head.weight"] = weights.pop("model.embed_tokens.weight")

    edit_weights(folder, rename)
    model = describe(opened(folder))
    assert model.spec.tied_head
    np.testing.assert_array_equal(model.weights["embed"].read(), expected)
    edit_config(folder, tie_word_embeddings=False)
    with pytest.raises(CheckpointError, match=r"embed is missing: there is no tensor 'model\.embed_tokens\.weight'"):
        describe(opened(folder))


def test_c1_gguf_without_output_is_tied(tmp_path: Path, opened: Open) -> None:
    tied = tiny_llama(tmp_path / "tied", tie_word_embeddings=True)
    assert describe(opened(write_gguf(tied, tmp_path / "tied.gguf"))).spec.tied_head
    loose = tiny_llama(tmp_path / "loose")
    assert not describe(opened(write_gguf(loose, tmp_path / "loose.gguf"))).spec.tied_head


# ---- the order of rows ----


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_c7_rows_of_q_and_k_come_back(
    request: pytest.FixtureRequest, tmp_path: Path, opened: Open, family: str
) -> None:
    folder = request.getfixturevalue(f"{family}_folder")
    path = write_gguf(folder, tmp_path / "m.gguf")
    assert_same_weights(opened(path), folder)
    assert describe(opened(path)).spec == describe(opened(folder)).spec, "to the last bit of norm_eps"


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_0"])
def test_c7_quantized_rows_come_back(
    request: pytest.FixtureRequest, tmp_path: Path, opened: Open, family: str, kind: str
) -> None:
    folder = request.getfixturevalue(f"{family}_folder")
    source = load_file(folder / "model.safetensors")
    weights = describe(opened(write_gguf(folder, tmp_path / "m.gguf", quantization=kind))).weights
    number = gguf.GGMLQuantizationType[kind]
    for part in "qkvo":
        expected = source[f"model.layers.0.self_attn.{part}_proj.weight"].numpy()
        expected = gguf_dequantize(gguf_quantize(expected, number), number)  # by rows, so their order is immaterial
        tensor = weights[f"layers.0.attn.{part}"]
        np.testing.assert_array_equal(tensor.read(), expected)
        if tensor.scheme is not None:
            np.testing.assert_array_equal(dequantize(tensor.scheme, tensor.codes(), 64), expected)
            np.testing.assert_array_equal(dequantize(tensor.scheme, tensor.codes(3, 21), 64), expected[3:21])
        assert (tensor.scheme is not None) == (kind != "Q5_0")


def test_c7_any_range_of_rows(llama_folder: Path, tmp_path: Path, opened: Open) -> None:
    tensor = describe(opened(write_gguf(llama_folder, tmp_path / "m.gguf"))).weights["layers.0.attn.k"]
    expected = load_file(llama_folder / "model.safetensors")["model.layers.0.self_attn.k_proj.weight"].numpy()
    for start in range(33):
        for stop in range(start, 33):
            np.testing.assert_array_equal(tensor.read(start, stop), expected[start:stop])
