"""Qwen2 and Qwen2.5: biases on q, k and v; a window in the upper layers if the config turns it on.

Facts: transformers' Qwen2Config and Qwen2Attention.
"""

from __future__ import annotations

from typing import Any

from edge.layers import LayerSpec
from exporters.architectures.config import Config
from exporters.architectures.family import Family
from exporters.architectures.spec import read_layer, windowed_layers

DEFAULTS = {"sliding_window": 4096, "max_window_layers": 28, "num_key_value_heads": 32}


def upper_window(config: Config, layer: LayerSpec) -> tuple[LayerSpec, ...]:
    """Layers with the window of Qwen's configs: turned on by a flag of its own, from some layer on."""
    window = config.optional_integer("sliding_window") if config.flag("use_sliding_window") else None
    first = config.get("max_window_layers", 0)
    if type(first) is not int or first < 0:
        raise config.wrong("max_window_layers", first, "a number of layers")
    return windowed_layers(config, layer, window, lambda index: index >= first)


def _fields(config: Config) -> dict[str, Any]:
    return {"layers": upper_window(config, read_layer(config, attention={"qkv_bias": True}))}


FAMILY = Family("qwen2", _fields, DEFAULTS)
