"""What llama.cpp's converter does differently from family to family, written from its own rules."""

from __future__ import annotations

import math
import re
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

ARCHITECTURES = {"mistral": "llama", "gemma3_text": "gemma3", "olmo3": "olmo2", "qwen3_moe": "qwen3moe"}
INTERLEAVED = ("llama", "granite", "granitemoe", "smollm3")
# The part of a tensor's name in transformers that names a router or experts → its name in a GGUF file.
_EXPERTS = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps"}


def architecture(config: Any) -> str:
    return ARCHITECTURES.get(config.model_type, config.model_type)


def convert(name: str, data: npt.NDArray[Any], config: Any) -> npt.NDArray[Any]:
    """A tensor by its Hugging Face name, as it is stored."""
    arch = architecture(config)
    if arch.startswith("gemma") and name.endswith("norm.weight"):
        return data + np.float32(1)
    for part, heads in (("q", config.num_attention_heads), ("k", config.num_key_value_heads)):
        if arch in INTERLEAVED and f".{part}_proj." in name:
            return _interleave(data, heads)
    return data


def expert_tensors(name: str, data: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    """The tensors, by GGUF name, of a router's or experts' tensor, gate and up apart; none for others."""
    layer = re.match(r"model\.layers\.(\d+)\.(mlp|block_sparse_moe)\.(gate|router|experts)\.?(\w+)$", name)
    if layer is None or (layer[3] == "gate" and layer[4] != "weight"):
        return {}
    block = f"blk.{layer[1]}"
    if layer[3] != "experts":
        return {f"{block}.ffn_gate_inp.weight": data}
    if layer[4] == "gate_up_proj":
        gate, up = np.split(data, 2, axis=1)
        return {f"{block}.{_EXPERTS['gate_proj']}.weight": gate, f"{block}.{_EXPERTS['up_proj']}.weight": up}
    return {f"{block}.{_EXPERTS[layer[4]]}.weight": data}


def _interleave(rows: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """The halves of each head side by side."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def write_sizes(writer: gguf.GGUFWriter, config: Any) -> None:
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    if head_dim * config.num_attention_heads != config.hidden_size:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    _write_windows(writer, config)
    _write_scaling(writer, config, rope)
    if architecture(config) == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if architecture(config) in ("olmoe", "granitemoe", "qwen3moe"):
        writer.add_expert_count(getattr(config, "num_local_experts", None) or config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if architecture(config) == "qwen3moe":
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if architecture(config) in ("granite", "granitemoe"):
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)


def _write_windows(writer: gguf.GGUFWriter, config: Any) -> None:
    if architecture(config) in ("gemma2", "gemma3", "olmo2", "phi3"):
        window = getattr(config, "sliding_window", None)
        if window is not None or architecture(config) == "phi3":
            writer.add_sliding_window(window or 0)
    if architecture(config) == "gemma3":
        writer.add_sliding_window_pattern(config.layer_types.index("full_attention") + 1)
        writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])
    if config.model_type == "olmo3":
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])


def _write_scaling(writer: gguf.GGUFWriter, config: Any, rope: dict[str, Any]) -> None:
    kind, original = rope["rope_type"], rope.get("original_max_position_embeddings")
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(rope["factor"])
    if kind in ("yarn", "longrope"):
        writer.add_rope_scaling_orig_ctx_len(original)
    if kind == "yarn":
        writer.add_rope_scaling_attn_factors(0.1 * math.log(rope["factor"]) + 1.0)
    if kind == "longrope":
        stretch = config.max_position_embeddings / original
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(stretch) / math.log(original)))
        for part in ("short", "long"):
            writer.add_tensor(f"rope_factors_{part}.weight", np.array(rope[f"{part}_factor"], np.float32))
