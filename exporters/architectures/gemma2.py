"""Gemma 2: Gemma with norms around each half of a layer, soft-caps, and a window in every other layer.

Facts: transformers' Gemma2Config and Gemma2Model.
"""

from __future__ import annotations

from typing import Any

from edge.layers import LayerSpec
from exporters.architectures import gemma, names
from exporters.architectures.config import Config
from exporters.architectures.family import Family
from exporters.architectures.spec import read_activation, read_head_dim, read_softcap, windowed_layers

SANDWICH = {
    **names.HUGGING_FACE,
    "attn_post_norm": "model.layers.{}.post_attention_layernorm",
    "mlp_norm": "model.layers.{}.pre_feedforward_layernorm",
    "mlp_post_norm": "model.layers.{}.post_feedforward_layernorm",
}
DEFAULTS = {
    **gemma.DEFAULTS,
    "hidden_activation": "gelu_pytorch_tanh",
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
_LARGEST = (46, 62)  # layers of Gemma 2 and 3 with 27B parameters (llama.cpp tells the two by them as well)


def shared(config: Config) -> dict[str, Any]:
    """What Gemma 2 and 3 have in common."""
    cap = read_softcap(config, "final_logit_softcapping")
    return {**gemma.shared(config), "post_norms": True, "logit_softcap": cap}


def layer(config: Config, **attention: Any) -> LayerSpec:
    """A layer of Gemma 2 or 3; `attention` holds fields that Gemma 3 adds."""
    attention |= {"scale": query_scalar(config) ** -0.5, "softcap": read_softcap(config, "attn_logit_softcapping")}
    return gemma.layer(config, activation=read_activation(config, "hidden_activation"), **attention)


def query_scalar(config: Config) -> float:
    """GGUF files do not hold it: it is the width of the heads there, except in the two models of 27B parameters."""
    head_dim, layers = read_head_dim(config), config.integer("num_hidden_layers")
    by_size = config.integer("hidden_size") // config.integer("num_attention_heads") if layers in _LARGEST else head_dim
    return config.number("query_pre_attn_scalar", by_size)


def _fields(config: Config) -> dict[str, Any]:
    window = config.optional_integer("sliding_window")
    layers = windowed_layers(config, layer(config), window, lambda index: index % 2 == 0)
    return {**shared(config), "layers": layers}


FAMILY = Family(
    "gemma2",
    _fields,
    {**DEFAULTS, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    hugging_face=SANDWICH,
    gguf_defaults={"query_pre_attn_scalar": None},
    gguf_whole_norms=True,
)
