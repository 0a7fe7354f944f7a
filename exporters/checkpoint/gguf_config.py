"""GGUF metadata read as the config.json that the model had before it was converted.

What a GGUF file says only through its tensors is derived from them: a tied head (no output.weight), biases, and the
Llama 3 rope scaling (rope_freqs.weight), of which the file keeps the resulting factors and not the parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.decoder import RopeSpec
from edge.errors import CheckpointError, UnsupportedError
from edge.rope import inverse_frequencies
from exporters.checkpoint import SourceTensor

ROPE_FACTORS = "rope_freqs.weight"

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
    "rope.dimension_count": "rotary_dim",
}
SCALING_KEYS = {
    "rope.scaling.type": "rope_type",
    "rope.scaling.factor": "factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
}
TOKEN_KEYS = {"tokenizer.ggml.bos_token_id": "bos_token_id", "tokenizer.ggml.eos_token_id": "eos_token_id"}
# Values that change what is computed and that no family read here uses, with the value that changes nothing.
NEUTRAL = {
    "attention.clamp_kqv": 0.0,
    "attention.scale": 0.0,
    "attention.causal": True,
    "embedding_scale": 1.0,
    "expert_count": 0,
    "logit_scale": 1.0,
    "residual_scale": 1.0,
    "rope.scaling.attn_factor": 1.0,
}
# (original context, low and high frequency factors) of the models that were published with this kind of scaling
LLAMA3_SHAPES = ((8192, 1.0, 4.0),)


def read_config(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, SourceTensor]) -> dict[str, Any]:
    """The config of a GGUF file.

    Raises CheckpointError for values of the wrong kind, UnsupportedError for settings that would be lost.
    """
    arch = read_architecture(path, metadata)
    parts = metadata.get("split.count", 1)
    if parts not in (0, 1):
        raise UnsupportedError(f"{path}: one of {parts} parts of a split file; join them with llama-gguf-split --merge")
    for key, neutral in NEUTRAL.items():
        value = metadata.get(f"{arch}.{key}", neutral)
        if value != neutral:
            raise UnsupportedError(f"{path}: {arch}.{key} is {value!r}, which is not supported (only {neutral!r} is)")
    config: dict[str, Any] = {}
    for key, name in KEYS.items():
        if f"{arch}.{key}" in metadata:
            config[name] = _same_everywhere(path, f"{arch}.{key}", metadata[f"{arch}.{key}"])
    config.update({name: metadata[key] for key, name in TOKEN_KEYS.items() if key in metadata})
    if "token_embd.weight" in tensors:
        config["vocab_size"] = tensors["token_embd.weight"].shape[0]
    _check_head_sizes(path, arch, metadata, config)
    config["tie_word_embeddings"] = "output.weight" not in tensors
    config["attention_bias"] = "blk.0.attn_q.bias" in tensors
    config["mlp_bias"] = "blk.0.ffn_gate.bias" in tensors
    config["rope_scaling"] = _rope_scaling(path, arch, metadata, config, tensors)
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


def _check_head_sizes(path: Path, arch: str, metadata: Mapping[str, Any], config: dict[str, Any]) -> None:
    """Values must be as wide as keys, and every dimension of a head rotary (both hold for the families read here)."""
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    head_dim = config.get("head_dim")
    if head_dim is None and isinstance(hidden, int) and isinstance(heads, int) and heads > 0:
        head_dim = hidden // heads
    value_dim = metadata.get(f"{arch}.attention.value_length", head_dim)
    rotary = config.pop("rotary_dim", head_dim)
    if value_dim != head_dim:
        raise UnsupportedError(f"{path}: heads of {head_dim} for keys but {value_dim} for values are not supported")
    if rotary != head_dim:
        raise UnsupportedError(f"{path}: rope over {rotary} of {head_dim} dimensions of a head is not supported")


def _rope_scaling(
    path: Path,
    arch: str,
    metadata: Mapping[str, Any],
    config: Mapping[str, Any],
    tensors: Mapping[str, SourceTensor],
) -> dict[str, Any] | None:
    scaling = {name: metadata[f"{arch}.{key}"] for key, name in SCALING_KEYS.items() if f"{arch}.{key}" in metadata}
    linear = metadata.get(f"{arch}.rope.scale_linear")  # the older spelling
    if linear is not None and "rope_type" not in scaling:
        scaling |= {"rope_type": "linear", "factor": linear}
    kind = scaling.get("rope_type", "none")
    if ROPE_FACTORS in tensors:
        if kind not in ("none", "llama3"):
            raise UnsupportedError(f"{path}: has both {ROPE_FACTORS} and rope scaling of type {kind!r}")
        return _llama3(path, config, tensors[ROPE_FACTORS])
    return None if kind == "none" else scaling


def _llama3(path: Path, config: Mapping[str, Any], factors: SourceTensor) -> dict[str, Any] | None:
    """The Llama 3 parameters whose formula gives these factors. Raises UnsupportedError if none does.

    The factors were computed in float32 by the converter, hence the tolerance.
    """
    stored = factors.read().reshape(-1).astype(np.float64)
    theta = config.get("rope_theta", 10000.0)
    if not isinstance(theta, int | float) or theta <= 0 or not np.all(stored > 0):
        raise CheckpointError(f"{path}: {ROPE_FACTORS} and a rope base of {theta!r} give no frequencies")
    largest = float(stored.max())
    if np.all(stored == 1.0):
        return None
    for original, low, high in LLAMA3_SHAPES:
        rope = RopeSpec(2 * len(stored), theta, "llama3", largest, low, high, original)
        if np.allclose(_factors(rope), stored, rtol=1e-5, atol=0.0):
            return {
                "rope_type": "llama3",
                "factor": largest,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": original,
            }
    raise UnsupportedError(
        f"{path}: {ROPE_FACTORS} holds frequency factors up to {largest:g} that are not those of Llama 3.1's formula "
        f"(original context {', '.join(str(shape[0]) for shape in LLAMA3_SHAPES)}); export from the safetensors model"
    )


def _factors(rope: RopeSpec) -> npt.NDArray[np.float64]:
    """What the plain frequencies are divided by."""
    return np.asarray(inverse_frequencies(replace(rope, kind="default")) / inverse_frequencies(rope))
