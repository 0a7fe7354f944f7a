"""Gemma 1, and what all Gemmas share: norms of 1 + w, a scaled embedding that is also the head, the tanh GELU.

Checkpoints of Gemma 1 call the activation "gelu" and mean its tanh approximation. Embeddings were scaled in bfloat16
when the models were trained; like transformers in float32 and llama.cpp, this scales by the root itself. Facts:
transformers' GemmaConfig and GemmaModel.
"""

from __future__ import annotations

from typing import Any

from exporters.architectures.config import Config
from exporters.architectures.family import Family

DEFAULTS = {"head_dim": 256, "tie_word_embeddings": True}


def shared(config: Config) -> dict[str, Any]:
    if config.get("use_bidirectional_attention"):
        raise config.wrong("use_bidirectional_attention", True, "false: only decoders are exported")
    bias = config.flag("attention_bias")
    return {
        "norm_offset": 1.0,
        "activation": "gelu_tanh",
        "embedding_scale": config.integer("hidden_size") ** 0.5,
        "qkv_bias": bias,
        "output_bias": bias,
    }


FAMILY = Family("gemma", shared, DEFAULTS, gguf_whole_norms=True)
