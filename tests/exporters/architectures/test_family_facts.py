"""What single families do differently: defaults of their configs, fused matrices, scaled weights, parts left out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize as gguf_dequantize
from gguf.quants import quantize as gguf_quantize
from safetensors.torch import load_file
from transformers import Gemma2Config, Gemma3TextConfig, SmolLM3Config
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding

import edge
from edge.decoder import DecoderSpec
from edge.errors import CheckpointError, UnsupportedError
from edge.kv import plan_layout
from edge.payload import dequantize
from edge.rope import inverse_frequencies
from exporters.architectures import decoder_spec, describe, gemma2, gemma3, smollm3
from exporters.architectures.config import Config
from exporters.architectures.family import Family
from exporters.checkpoint import Checkpoint
from tests.exporters import tiny
from tests.exporters.architectures.editing import edit_config
from tests.exporters.tiny import load_reference, write_gguf

Open = Callable[[Path], Checkpoint]


def spec_of(family: Family, values: dict[str, Any], **defaults: Any) -> DecoderSpec:
    config = Config("config.json", values, {**family.defaults, **defaults})
    return decoder_spec(config, family)


def windows_of(config: Any) -> list[int | None]:
    return [config.sliding_window if kind == "sliding_attention" else None for kind in config.layer_types]


def test_c6_qwen3_head_dim_is_never_derived(tmp_path: Path, opened: Open) -> None:
    """Absent, it means 128 in transformers, whatever hidden / heads is (Qwen3-0.6B: 64)."""
    folder = tiny.tiny_qwen3(tmp_path / "model", head_dim=128)
    edit_config(folder, "head_dim")
    spec = describe(opened(folder)).spec
    attention = spec.layers[0].attention
    assert (attention.heads, attention.head_dim, attention.scale) == (4, 128, 128**-0.5)


def test_gemma3_config_as_published_for_4b() -> None:
    """The published text_config names only what differs from the class's defaults."""
    sparse = {
        "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    }  # fmt: skip
    expected = Gemma3TextConfig(**json.loads(json.dumps(sparse)))
    spec = spec_of(gemma3.FAMILY, sparse)
    assert {(layer.attention.heads, layer.attention.kv_heads, layer.attention.head_dim) for layer in spec.layers} == {
        (8, 4, 256)
    }
    assert (spec.vocab_size, spec.context) == (expected.vocab_size, expected.max_position_embeddings)
    assert spec.embedding_scale == 2560**0.5
    assert [layer.attention.window for layer in spec.layers] == windows_of(expected)
    rotary = Gemma3RotaryEmbedding(expected)
    for layer in spec.layers:
        kind = "full_attention" if layer.attention.window is None else "sliding_attention"
        assert layer.attention.rope is not None
        found = inverse_frequencies(spec.ropes[layer.attention.rope])
        np.testing.assert_allclose(found, getattr(rotary, f"{kind}_inv_freq").numpy(), rtol=1e-6)


def test_gemma2_windows_alternate_and_caps_may_be_off() -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 5, "vocab_size": 300}
    whole = {**sizes, "max_position_embeddings": 8192}
    spec = spec_of(gemma2.FAMILY, whole)
    assert [layer.attention.window for layer in spec.layers] == windows_of(Gemma2Config(**whole))
    assert (spec.layers[0].attention.softcap, spec.logit_softcap) == (50.0, 30.0)
    assert spec_of(gemma2.FAMILY, {**whole, "attn_logit_softcapping": None}).layers[0].attention.softcap is None


@pytest.mark.parametrize(
    ("family", "layers", "hidden", "heads", "head_dim", "scalar"),
    [
        (gemma2.FAMILY, 26, 2304, 8, 256, 256),
        (gemma2.FAMILY, 46, 4608, 32, 128, 144),
        (gemma3.FAMILY, 26, 1152, 4, 256, 256),
        (gemma3.FAMILY, 62, 5376, 32, 128, 168),
    ],
)
def test_n38_scale_of_queries_in_a_gguf_file(
    family: Family, layers: int, hidden: int, heads: int, head_dim: int, scalar: int
) -> None:
    """Not stored there; the scalars are what the published configs of 2B, 27B, 1B and 27B say."""
    values = {"hidden_size": hidden, "num_attention_heads": heads, "head_dim": head_dim, "num_hidden_layers": layers}
    read = Config("config.json", values, {**family.defaults, **family.gguf_defaults})
    assert gemma2.query_scalar(read) == scalar


def test_gemma3_local_layers_keep_short_rings(tmp_path: Path, opened: Open) -> None:
    spec = describe(
        opened(tiny.tiny_gemma3(tmp_path / "model", sliding_window=512, max_position_embeddings=32768))
    ).spec
    assert [ring.slots for ring in plan_layout(spec, 32768, chunk=256).rings] == [13 * 64, 32768]


def test_gemma_norms_in_a_gguf_file_are_whole(tmp_path: Path, opened: Open) -> None:
    folder = tiny.tiny_gemma3(tmp_path / "model", query_pre_attn_scalar=32)
    plain, whole = describe(opened(folder)), describe(opened(write_gguf(folder, tmp_path / "m.gguf")))
    assert (plain.spec.norm_offset, whole.spec.norm_offset) == (1.0, 0.0)
    for name in ("norm", "layers.2.attn_post_norm", "layers.0.attn.q_norm"):
        np.testing.assert_array_equal(whole.weights[name].read(), plain.weights[name].read() + np.float32(1))


def test_bidirectional_gemma_is_refused(tmp_path: Path, opened: Open) -> None:
    folder = tiny.tiny_gemma3(tmp_path / "model")
    edit_config(folder, use_bidirectional_attention=True)
    with pytest.raises(CheckpointError, match=r"use_bidirectional_attention .* is True; it must be false"):
        describe(opened(folder))


def test_vision_part_is_left_out_and_said_so(tmp_path: Path, opened: Open) -> None:
    folder = tiny.tiny_gemma3_vision(tmp_path / "model")
    count = sum(not name.startswith("language_model.") for name in load_file(folder / "model.safetensors"))
    note = f"{count} tensors of other parts of the model (vision_tower, multi_modal_projector) are left out"
    assert describe(opened(folder)).notes == (note,)
    bundle = edge.export(folder, tmp_path / "m.dsedge", recipe="int4-g32-sym")
    assert note in bundle.manifest.quality.notes
    edit_config(folder, "text_config")
    with pytest.raises(CheckpointError, match="no table text_config"):
        describe(opened(folder))


# ---- Phi-3: rows of fused matrices ----


def test_phi3_rows_of_fused_matrices(tmp_path: Path, opened: Open) -> None:
    folder = tiny.tiny_phi3(tmp_path / "model")
    layer = load_reference(folder).model.layers[1]
    qkv, gate_up = layer.self_attn.qkv_proj.weight.detach().numpy(), layer.mlp.gate_up_proj.weight.detach().numpy()
    weights = describe(opened(folder)).weights
    expected = {"attn.q": qkv[:64], "attn.k": qkv[64:96], "attn.v": qkv[96:], "mlp.gate": gate_up[:96],
                "mlp.up": gate_up[96:]}  # fmt: skip
    for part, rows in expected.items():
        tensor = weights[f"layers.1.{part}"]
        assert tensor.shape == rows.shape
        np.testing.assert_array_equal(tensor.read(), rows)
        np.testing.assert_array_equal(tensor.read(3, 17), rows[3:17])
        with pytest.raises(IndexError):
            tensor.read(0, len(rows) + 1)  # the next matrix's rows are not this one's


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_0"])
def test_phi3_codes_of_fused_matrices(tmp_path: Path, opened: Open, kind: str) -> None:
    folder = tiny.tiny_phi3(tmp_path / "model")
    source = load_file(folder / "model.safetensors")["model.layers.0.self_attn.qkv_proj.weight"].numpy()
    number = gguf.GGMLQuantizationType[kind]
    expected = gguf_dequantize(gguf_quantize(source, number), number)[64:96]
    tensor = describe(opened(write_gguf(folder, tmp_path / "m.gguf", quantization=kind))).weights["layers.0.attn.k"]
    np.testing.assert_array_equal(tensor.read(), expected)
    assert (tensor.scheme is not None) == (kind != "Q5_0")
    if tensor.scheme is not None:
        np.testing.assert_array_equal(dequantize(tensor.scheme, tensor.codes(5, 9), 64), expected[5:9])


def test_phi3_fused_matrix_of_another_size(tmp_path: Path, opened: Open) -> None:
    folder = tiny.tiny_phi3(tmp_path / "model")
    edit_config(folder, num_key_value_heads=4)
    with pytest.raises(
        CheckpointError, match=r"qkv_proj.*\[128, 64\]; the config makes .*q and 2 more in it \[192, 64\]"
    ):
        describe(opened(folder))


@pytest.mark.parametrize("name", ["su", "yarn"])
def test_phi3_old_names_of_longrope(name: str, tmp_path: Path, opened: Open) -> None:
    folder = tiny.tiny_phi3(tmp_path / "model")
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    edit_config(folder, "rope_parameters", rope_scaling={"type": name, **factors})
    rope = describe(opened(folder)).spec.ropes[0]
    assert (rope.kind, rope.original_context, rope.long_factors) == ("longrope", 4096, (2.0,) * 8)


def test_longrope_in_a_gguf_file_needs_both_lists(llama_folder: Path, tmp_path: Path, opened: Open) -> None:
    path = write_gguf(llama_folder, tmp_path / "m.gguf", metadata={"rope.scaling.type": "longrope"})
    with pytest.raises(CheckpointError, match=r"longrope without the tensor rope_factors_short\.weight"):
        describe(opened(path))


def test_a_part_of_each_head_is_turned_only_where_the_family_does(
    llama_folder: Path, tmp_path: Path, opened: Open
) -> None:
    path = write_gguf(llama_folder, tmp_path / "m.gguf", metadata={"rope.dimension_count": 8})
    with pytest.raises(UnsupportedError, match=r"rope over 0\.5 of each head"):
        describe(opened(path))


# ---- SmolLM3, Granite ----


def test_smollm3_layers_without_rope() -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 9, "vocab_size": 300,
             "num_attention_heads": 4, "max_position_embeddings": 4096}  # fmt: skip
    expected = SmolLM3Config(**sizes).no_rope_layers
    assert [int(layer.attention.rope is not None) for layer in spec_of(smollm3.FAMILY, sizes).layers] == expected
    listed = [1, 0, 0, 1, 1, 1, 0, 1, 1, 0]  # longer than the model, as the config allows
    spec = spec_of(smollm3.FAMILY, {**sizes, "no_rope_layers": listed})
    assert [int(layer.attention.rope is not None) for layer in spec.layers] == listed[:9]
    assert spec.ropes[0].theta == 2e6
    for wrong in ([1, 0], [2] * 9, "1"):
        with pytest.raises(CheckpointError, match=r"no_rope_layers .* it must be a list of 9 zeros and ones"):
            spec_of(smollm3.FAMILY, {**sizes, "no_rope_layers": wrong})


def test_granite_scales_weights_and_says_that_codes_are_lost(tmp_path: Path, opened: Open) -> None:
    folder = tiny.tiny_granite(tmp_path / "model")
    source = load_file(folder / "model.safetensors")
    weights = describe(opened(folder)).weights
    down = source["model.layers.0.mlp.down_proj.weight"].numpy()
    np.testing.assert_array_equal(weights["layers.0.mlp.down"].read(2, 5), down[2:5] * np.float32(0.6))
    np.testing.assert_array_equal(weights["norm"].read(), source["model.norm.weight"].numpy() * np.float32(1 / 2.5))
    converted = describe(opened(write_gguf(folder, tmp_path / "m.gguf", quantization="Q8_0"))).weights
    assert converted["layers.0.attn.o"].scheme is None
    assert converted["layers.0.attn.o"].note == "multiplied by 0.6, so its Q8_0 codes are not carried: dequantized"
    assert converted["layers.0.attn.q"].scheme is not None
