"""OLMo 2: norms on the outputs of attention and MLP instead of their inputs, q and k normalized whole.

GGUF files call OLMo 3 by the same name; what tells it is its window. Facts: transformers' Olmo2Config, Olmo3Config and
their models.
"""

from __future__ import annotations

from typing import Any

from exporters.architectures import names
from exporters.architectures.config import Config
from exporters.architectures.family import Family
from exporters.architectures.ropes import layered_ropes
from exporters.architectures.spec import read_head_dim, read_layer, repeat, windowed_layers, with_window_ropes

POST_NORMS = {
    **names.HUGGING_FACE,
    "attn_post_norm": "model.layers.{}.post_attention_layernorm",
    "mlp_post_norm": "model.layers.{}.post_feedforward_layernorm",
}


def fields(config: Config) -> dict[str, Any]:
    """OLMo 2, and with a window OLMo 3: three of four layers see it, and their rope is not stretched."""
    bias = config.flag("attention_bias")
    layer = read_layer(config, attention={"qk_norm": "full", "qkv_bias": bias, "output_bias": bias})
    values = {"pre_norms": False, "post_norms": True, "layers": repeat(config, layer)}
    window = config.optional_integer("sliding_window")
    if window is None:
        return values
    layers = windowed_layers(config, layer, window, lambda index: (index + 1) % 4 != 0)
    ropes = layered_ropes(config, read_head_dim(config), local_theta=config.number("rope_theta", 1e4))
    return {**values, "layers": with_window_ropes(layers), "ropes": ropes}


FAMILY = Family("olmo2", fields, {"rms_norm_eps": 1e-5}, hugging_face=POST_NORMS)
