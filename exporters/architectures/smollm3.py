"""SmolLM3: a Llama in which every fourth layer has no positional encoding. Facts: transformers' SmolLM3Config."""

from __future__ import annotations

from typing import Any

from exporters.architectures import llama
from exporters.architectures.config import Config
from exporters.architectures.family import Family
from exporters.architectures.spec import read_layers, windowed_layers, with_attention


def _rotates(config: Config) -> list[bool]:
    """Whether each layer has a rope. The config's list has 1 for those that do, in spite of its name."""
    count, period = read_layers(config), config.integer("no_rope_layer_interval", 4)
    listed = config.get("no_rope_layers")
    if listed is None:
        return [(index + 1) % period != 0 for index in range(count)]
    if not isinstance(listed, list) or len(listed) < count or not all(flag in (0, 1) for flag in listed):
        raise config.wrong("no_rope_layers", listed, f"a list of {count} zeros and ones")
    return [bool(flag) for flag in listed[:count]]


def _fields(config: Config) -> dict[str, Any]:
    rotates = _rotates(config)
    window = config.optional_integer("sliding_window") if config.flag("use_sliding_window") else None
    layers = windowed_layers(config, llama.layer(config), window, lambda index: not rotates[index])
    marked = zip(layers, rotates, strict=True)
    return {"layers": tuple(layer if rotated else with_attention(layer, rope=None) for layer, rotated in marked)}


FAMILY = Family(
    "smollm3",
    _fields,
    {"num_key_value_heads": 4, "rope_theta": 2e6, "tie_word_embeddings": True},
    interleaved=("gguf",),
)
