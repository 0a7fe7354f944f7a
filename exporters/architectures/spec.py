"""The part of reading a spec from a config that all families share, and pieces for those that differ in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from edge.decoder import LAYERS, DecoderSpec
from edge.errors import CheckpointError, UnsupportedError
from edge.layers import Activation, Dense, Gqa, LayerSpec
from exporters.architectures.config import Config
from exporters.architectures.ropes import read_rope

ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}


def read_spec(config: Config, family: str, fields: Mapping[str, Any]) -> DecoderSpec:
    """The spec that a config describes; `fields` are those of DecoderSpec that the family reads in its own way.

    Raises CheckpointError for missing sizes, FormatError for contradictory ones, UnsupportedError for rope kinds and
    activations that are not known.
    """
    values: dict[str, Any] = {
        "family": family,
        "vocab_size": config.integer("vocab_size"),
        "hidden_size": config.integer("hidden_size"),
        "context": config.integer("max_position_embeddings"),
        "norm_eps": config.number("rms_norm_eps", 1e-6),
    }
    values |= fields
    if "ropes" not in values:
        values["ropes"] = (read_rope(config, read_head_dim(config)),)
    if "layers" not in values:
        values["layers"] = repeat(config, read_layer(config))
    values["layers"] = _within(values["context"], values["layers"])
    return DecoderSpec(**values)


def _within(context: int, layers: tuple[LayerSpec, ...]) -> tuple[LayerSpec, ...]:
    """The layers; a window that no context leaves is none, so that its layers share a ring with the others."""
    return tuple(
        with_attention(layer, window=None) if (layer.attention.window or 0) >= context else layer for layer in layers
    )


def read_layer(
    config: Config, *, attention: Mapping[str, Any] | None = None, mlp: Mapping[str, Any] | None = None
) -> LayerSpec:
    """A layer of grouped-query attention and a gated MLP; the mappings hold fields that the family reads otherwise.

    Raises CheckpointError for missing sizes, FormatError for contradictory ones.
    """
    return LayerSpec(read_gqa(config, attention or {}), read_dense(config, mlp or {}))


def read_gqa(config: Config, fields: Mapping[str, Any]) -> Gqa:
    heads, head_dim = config.integer("num_attention_heads"), read_head_dim(config)
    kv_heads = config.integer("num_key_value_heads", heads)
    return Gqa(**{"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "scale": head_dim**-0.5, **fields})


def read_dense(config: Config, fields: Mapping[str, Any]) -> Dense:
    values = {"size": config.integer("intermediate_size"), **fields}
    if "activation" not in values:
        values["activation"] = read_activation(config, "hidden_act")
    return Dense(**values)


def repeat(config: Config, layer: LayerSpec) -> tuple[LayerSpec, ...]:
    """The same layer as often as the config says."""
    return (layer,) * read_layers(config)


def read_layers(config: Config) -> int:
    """How many layers there are: asked here before anything is made for each of them."""
    count = config.integer("num_hidden_layers")
    if count > LAYERS:
        raise config.wrong("num_hidden_layers", count, f"at most {LAYERS}")
    return count


def read_head_dim(config: Config) -> int:
    """head_dim, never derived where the config gives it."""
    given = config.optional_integer("head_dim")
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    if given is None and hidden % heads:
        raise CheckpointError(f"{config.path}: no head_dim, and {heads} heads do not divide hidden_size {hidden}")
    return given or hidden // heads


def read_activation(config: Config, key: str) -> Activation:
    name = config.text(key, "silu")
    if name not in ACTIVATIONS:
        raise UnsupportedError(f"{config.path}: activation {name!r} is not known; known are {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def read_softcap(config: Config, key: str) -> float | None:
    """A soft-cap; 0 and an absent key are none."""
    return None if config.get(key) in (None, 0) else config.number(key)


def windowed_layers(
    config: Config, layer: LayerSpec, window: int | None, local: Callable[[int], bool]
) -> tuple[LayerSpec, ...]:
    """Layers of which the local ones see `window` tokens; the config's own `layer_types` decide if it has them.

    Raises UnsupportedError for a layer type that is not attention over everything or over a window.
    """
    count = read_layers(config)
    types = config.get("layer_types")
    if types is None:
        types = ["sliding_attention" if local(index) else "full_attention" for index in range(count)]
    if not isinstance(types, list) or len(types) != count:
        raise CheckpointError(f"{config.path}: layer_types does not name the type of each of {count} layers")
    unknown = next((kind for kind in types if kind not in ("full_attention", "sliding_attention")), None)
    if unknown is not None:
        raise UnsupportedError(f"{config.path}: layers of type {unknown!r}; known: full_attention, sliding_attention")
    windowed = with_attention(layer, window=window)
    return tuple(windowed if kind == "sliding_attention" else layer for kind in types)


def with_attention(layer: LayerSpec, **fields: Any) -> LayerSpec:
    """The layer with other fields of its attention."""
    return replace(layer, attention=replace(layer.attention, **fields))


def with_window_ropes(layers: tuple[LayerSpec, ...]) -> tuple[LayerSpec, ...]:
    """Layers with a window take rope 0, the others rope 1: the order of `layered_ropes`."""
    return tuple(with_attention(layer, rope=1 if layer.attention.window is None else 0) for layer in layers)
