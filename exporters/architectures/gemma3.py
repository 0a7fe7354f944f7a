"""Gemma 3, the text decoder: Gemma 2 without soft-caps, with q and k normalized; five window layers to a global one.

Window layers have a rope of their own. Facts: transformers' Gemma3TextConfig and Gemma3TextModel.
"""

from __future__ import annotations

from typing import Any

from exporters.architectures import gemma2
from exporters.architectures.config import Config
from exporters.architectures.family import Family
from exporters.architectures.ropes import layered_ropes
from exporters.architectures.spec import read_head_dim, windowed_layers, with_window_ropes

DEFAULTS = {
    **gemma2.DEFAULTS,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "max_position_embeddings": 131072,
    "num_hidden_layers": 26,
    "rope_theta": 1e6,
    "sliding_window_pattern": 6,
    "vocab_size": 262208,
}


def fields(config: Config) -> dict[str, Any]:
    period = config.integer("sliding_window_pattern")
    layer, window = gemma2.layer(config, qk_norm="head"), config.optional_integer("sliding_window")
    layers = windowed_layers(config, layer, window, lambda index: (index + 1) % period != 0)
    local_theta = config.number("rope_local_base_freq", 1e4)
    return {
        **gemma2.shared(config),
        "layers": with_window_ropes(layers),
        "ropes": layered_ropes(config, read_head_dim(config), local_theta=local_theta),
    }


FAMILY = Family(
    "gemma3",
    fields,
    DEFAULTS,
    hugging_face=gemma2.SANDWICH,
    gguf_defaults={"query_pre_attn_scalar": None},
    gguf_whole_norms=True,
)
