"""Mistral and Ministral: a Llama without biases whose layers see a window, if the config has one.

GGUF files call it llama and do not hold the window. Facts: transformers' MistralConfig and MinistralConfig.
"""

from __future__ import annotations

from typing import Any

from exporters.architectures.config import Config
from exporters.architectures.family import Family
from exporters.architectures.spec import read_layer, windowed_layers


def _fields(config: Config) -> dict[str, Any]:
    window = config.optional_integer("sliding_window")
    return {"layers": windowed_layers(config, read_layer(config), window, lambda index: True)}


FAMILY = Family("mistral", _fields, defaults={"num_key_value_heads": 8, "sliding_window": 4096})
