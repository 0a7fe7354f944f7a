"""Mistral 7B: a Llama without biases whose layers see a window. Facts: transformers' MistralConfig."""

from __future__ import annotations

from typing import Any

from exporters.architectures.config import Config, windowed_layers
from exporters.architectures.family import Family


def _fields(config: Config) -> dict[str, Any]:
    return {"layers": windowed_layers(config, config.optional_integer("sliding_window"))}


FAMILY = Family("mistral", _fields, defaults={"num_key_value_heads": 8, "sliding_window": 4096}, interleaved=True)
