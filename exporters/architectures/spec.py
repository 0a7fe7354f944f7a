"""The part of reading a spec from a config that all families share, and pieces for those that differ in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from edge.decoder import LAYERS, Activation, DecoderSpec, LayerSpec
from edge.errors import BundleError, CheckpointError, UnsupportedError
from exporters.architectures.config import Config
from exporters.architectures.ropes import read_rope

ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}


def read_spec(config: Config, family: str, fields: Mapping[str, Any]) -> DecoderSpec:
    """The spec that a config describes; `fields` override the shared reading.

    Raises CheckpointError for missing or contradictory sizes, UnsupportedError for rope kinds and activations that are
    not known.
    """
    heads, head_dim = config.integer("num_attention_heads"), read_head_dim(config)
    values: dict[str, Any] = {
        "family": family,
        "vocab_size": config.integer("vocab_size"),
        "hidden_size": config.integer("hidden_size"),
        "intermediate_size": config.integer("intermediate_size"),
        "heads": heads,
        "kv_heads": config.integer("num_key_value_heads", heads),
        "head_dim": head_dim,
        "layers": (LayerSpec(),) * read_layers(config),
        "context": config.integer("max_position_embeddings"),
        "norm_eps": config.number("rms_norm_eps", 1e-6),
        "attention_scale": head_dim**-0.5,
    }
    values |= fields
    if "ropes" not in values:
        values["ropes"] = (read_rope(config, head_dim),)
    if "activation" not in values:
        values["activation"] = read_activation(config, "hidden_act")
    try:
        return DecoderSpec(**values)
    except BundleError as error:
        raise CheckpointError(f"{config.path}: {error}") from error


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


def windowed_layers(config: Config, window: int | None, local: Callable[[int], bool]) -> tuple[LayerSpec, ...]:
    """Layers of which the local ones see `window` tokens; the config's own `layer_types` decide if it has them.

    Raises UnsupportedError for a layer type that is not attention over everything or over a window.
    """
    count = read_layers(config)
    types = config.get("layer_types")
    if types is None:
        return tuple(LayerSpec(window if local(index) else None) for index in range(count))
    if not isinstance(types, list) or len(types) != count:
        raise CheckpointError(f"{config.path}: layer_types does not name the type of each of {count} layers")
    unknown = next((kind for kind in types if kind not in ("full_attention", "sliding_attention")), None)
    if unknown is not None:
        raise UnsupportedError(f"{config.path}: layers of type {unknown!r}; known: full_attention, sliding_attention")
    return tuple(LayerSpec(window if kind == "sliding_attention" else None) for kind in types)
