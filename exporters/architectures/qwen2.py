"""Qwen2 and Qwen2.5: biases on q, k and v; a window in the upper layers if the config turns it on.

Facts: transformers' Qwen2Config and Qwen2Attention.
"""

from __future__ import annotations

from typing import Any

from exporters.architectures.config import Config, windowed_layers
from exporters.architectures.family import Family


def _fields(config: Config) -> dict[str, Any]:
    window = config.optional_integer("sliding_window") if config.flag("use_sliding_window") else None
    first = config.get("max_window_layers", 0)
    if type(first) is not int or first < 0:
        raise config.wrong("max_window_layers", first, "a number of layers")
    return {"qkv_bias": True, "layers": windowed_layers(config, window, first)}


FAMILY = Family("qwen2", _fields, defaults={"sliding_window": 4096, "max_window_layers": 28})
