"""Llama 1 to 3 and the many models of the same shape (SmolLM2, TinyLlama, Falcon 3, …).

Facts: transformers' LlamaConfig.
"""

from __future__ import annotations

from typing import Any

from edge.layers import LayerSpec
from exporters.architectures.config import Config
from exporters.architectures.family import Family
from exporters.architectures.spec import read_layer, repeat


def layer(config: Config, **attention: Any) -> LayerSpec:
    """A layer of Llama, whose configs may ask for biases; `attention` holds fields that another family adds."""
    bias = config.flag("attention_bias")
    return read_layer(
        config,
        attention={"qkv_bias": bias, "output_bias": bias, **attention},
        mlp={"bias": config.flag("mlp_bias")},
    )


def _fields(config: Config) -> dict[str, Any]:
    return {"layers": repeat(config, layer(config))}


FAMILY = Family("llama", _fields, interleaved=("gguf",))
