"""Gemma 1, and what all Gemmas share: norms of 1 + w, a scaled embedding that is also the head, the tanh GELU.

Checkpoints of Gemma 1 call the activation "gelu" and mean its tanh approximation. Embeddings were scaled in bfloat16
when the models were trained; like transformers in float32 and llama.cpp, this scales by the root itself. Facts:
transformers' GemmaConfig and GemmaModel.
"""

from __future__ import annotations

from typing import Any

from edge.layers import Activation, LayerSpec
from exporters.architectures.config import Config
from exporters.architectures.family import Family
from exporters.architectures.spec import read_layer, repeat

DEFAULTS = {"head_dim": 256, "tie_word_embeddings": True}


def shared(config: Config) -> dict[str, Any]:
    """What the decoders of all Gemmas have in common."""
    if config.get("use_bidirectional_attention"):
        raise config.wrong("use_bidirectional_attention", True, "false: only decoders are exported")
    return {"norm_offset": 1.0, "embedding_scale": config.integer("hidden_size") ** 0.5}


def layer(config: Config, *, activation: Activation = "gelu_tanh", **attention: Any) -> LayerSpec:
    """A layer of a Gemma; `attention` holds fields that later ones add."""
    bias = config.flag("attention_bias")
    return read_layer(
        config, attention={"qkv_bias": bias, "output_bias": bias, **attention}, mlp={"activation": activation}
    )


def _fields(config: Config) -> dict[str, Any]:
    return {**shared(config), "layers": repeat(config, layer(config))}


FAMILY = Family("gemma", _fields, DEFAULTS, gguf_whole_norms=True)
