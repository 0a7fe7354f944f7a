"""GGUF metadata read as the config.json that the model had before it was converted.

What a GGUF file says only through its tensors is derived from them: a tied head (no output.weight), biases, and
factors of rope frequencies (see gguf_rope).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edge.errors import CheckpointError, UnsupportedError
from exporters.checkpoint import SourceTensor
from exporters.checkpoint.gguf_rope import rope_scaling

# {architecture}.KEY → the name in a config.json
KEYS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "rope.freq_base": "rope_theta",
    "rope.freq_base_swa": "rope_local_base_freq",
    "rope.dimension_count": "rotary_dim",
}
_SOFTCAPS = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
# What only some architectures read.
_MULTIPLIERS = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "logit_scale": "logits_scaling",
    "residual_scale": "residual_multiplier",
}
_EXPERTS = {"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok"}
OWN_KEYS = {
    "gemma2": _SOFTCAPS,
    "gemma3": _SOFTCAPS,
    "granite": _MULTIPLIERS,
    "granitemoe": {**_MULTIPLIERS, **_EXPERTS, "expert_count": "num_local_experts"},
    "olmoe": _EXPERTS,
    "qwen3moe": {**_EXPERTS, "expert_feed_forward_length": "moe_intermediate_size"},
}
TOKEN_KEYS = {"tokenizer.ggml.bos_token_id": "bos_token_id", "tokenizer.ggml.eos_token_id": "eos_token_id"}
# Values that change what is computed and that other architectures do not use, with the value that changes nothing.
NEUTRAL = {
    "attention.clamp_kqv": 0.0,
    "attention.scale": 0.0,
    "attention.causal": True,
    "attn_logit_softcapping": 0.0,
    "embedding_scale": 1.0,
    "expert_count": 0,
    "expert_gating_func": 1,  # the softmax
    "expert_group_count": 1,
    "expert_shared_count": 0,
    "expert_shared_feed_forward_length": 0,
    "expert_weights_scale": 1.0,
    "final_logit_softcapping": 0.0,
    "leading_dense_block_count": 0,
    "logit_scale": 1.0,
    "residual_scale": 1.0,
}


def read_config(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, SourceTensor]) -> dict[str, Any]:
    """The config of a GGUF file.

    Raises CheckpointError for values of the wrong kind, UnsupportedError for settings that would be lost.
    """
    arch = read_architecture(path, metadata)
    own = OWN_KEYS.get(arch, {})
    for key, neutral in NEUTRAL.items():
        value = _same_everywhere(path, f"{arch}.{key}", metadata.get(f"{arch}.{key}", neutral))
        if value != neutral and key not in own:
            raise UnsupportedError(f"{path}: {arch}.{key} is {value!r}, which is not supported (only {neutral!r} is)")
    config: dict[str, Any] = {}
    for key, name in {**KEYS, **own}.items():
        if f"{arch}.{key}" in metadata:
            config[name] = _same_everywhere(path, f"{arch}.{key}", metadata[f"{arch}.{key}"])
    config |= _windows(metadata.get(f"{arch}.attention.sliding_window_pattern"))
    if config.get("sliding_window") == 0:
        config["sliding_window"] = None  # how converters write that there is none; absent, a family has its default
    config.update({name: metadata[key] for key, name in TOKEN_KEYS.items() if key in metadata})
    if "token_embd.weight" in tensors:
        config["vocab_size"] = tensors["token_embd.weight"].shape[0]
    _check_head_sizes(path, arch, metadata, config)
    config["tie_word_embeddings"] = "output.weight" not in tensors
    config["attention_bias"] = "blk.0.attn_q.bias" in tensors
    config["mlp_bias"] = "blk.0.ffn_gate.bias" in tensors
    config["rope_scaling"] = rope_scaling(path, arch, metadata, config, tensors)
    return config


def read_architecture(path: Path, metadata: Mapping[str, Any]) -> str:
    arch = metadata.get("general.architecture")
    if not isinstance(arch, str):
        raise CheckpointError(f"{path}: general.architecture is {arch!r}; it must name the architecture")
    return arch


def _same_everywhere(path: Path, key: str, value: Any) -> Any:
    """A value, or the one that an array of values per layer repeats."""
    if not isinstance(value, np.ndarray):
        return value
    distinct = np.unique(value)
    if len(distinct) != 1:
        raise UnsupportedError(f"{path}: {key} differs between layers, which is not supported")
    return distinct[0].item()


def _windows(pattern: Any) -> dict[str, Any]:
    """A flag a layer for those that see a window, or after how many of those one sees everything."""
    if isinstance(pattern, np.ndarray):
        return {"layer_types": ["sliding_attention" if local else "full_attention" for local in pattern.tolist()]}
    return {} if pattern is None else {"sliding_window_pattern": pattern}


def _check_head_sizes(path: Path, arch: str, metadata: Mapping[str, Any], config: dict[str, Any]) -> None:
    """Values must be as wide as keys. Where rope rotates a part of each head, the config says which."""
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    head_dim = config.get("head_dim")
    if head_dim is None and isinstance(hidden, int) and isinstance(heads, int) and heads > 0:
        head_dim = hidden // heads
    value_length = f"{arch}.attention.value_length"
    value_dim = _same_everywhere(path, value_length, metadata.get(value_length, head_dim))
    rotary = config.pop("rotary_dim", head_dim)
    if value_dim != head_dim:
        raise UnsupportedError(f"{path}: heads of {head_dim} for keys but {value_dim} for values are not supported")
    if isinstance(head_dim, int) and isinstance(rotary, int) and rotary != head_dim > 0:
        config["partial_rotary_factor"] = rotary / head_dim
