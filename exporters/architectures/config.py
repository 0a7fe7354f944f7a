"""Reading a config.json with every value's kind checked, and the part of it that all families share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from edge.decoder import Activation, DecoderSpec, LayerSpec, RopeSpec
from edge.errors import BundleError, CheckpointError, UnsupportedError

ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}


class Config:
    """Typed access to a config. A key that is absent or null has the family's default, or the one given here.

    Every method raises CheckpointError naming the key for a value of another kind, or for none where one is needed.
    """

    def __init__(self, path: str, values: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self.path = path
        self._values = values
        self._defaults = defaults

    def get(self, name: str, default: Any = None) -> Any:
        """The raw value. An explicit null counts as a value where the family's default is not null."""
        if name in self._values:
            value = self._values[name]
            return default if value is None else value
        return self._defaults.get(name, default)

    def integer(self, name: str, default: int | None = None) -> int:
        value = self.get(name, default)
        if type(value) is not int or not 0 < value < 2**31:
            raise self.wrong(name, value, "a positive whole number")
        return value

    def optional_integer(self, name: str) -> int | None:
        return None if self.get(name) is None else self.integer(name)

    def number(self, name: str, default: float | None = None) -> float:
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.wrong(name, value, "a positive number")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, value, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self.get(name, default)
        if not isinstance(value, str):
            raise self.wrong(name, value, "a text")
        return value

    def table(self, name: str) -> Mapping[str, Any] | None:
        value = self.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise self.wrong(name, value, "a table of settings")
        return value

    def wrong(self, name: str, value: Any, wanted: str) -> CheckpointError:
        found = "missing" if value is None else f"{value!r}"
        return CheckpointError(f"{self.path}: {name} in the model's config is {found}; it must be {wanted}")


def read_spec(config: Config, family: str, fields: Mapping[str, Any]) -> DecoderSpec:
    """The spec that a config describes; `fields` override the shared reading.

    head_dim is never derived where the config gives it. Raises CheckpointError for missing or contradictory sizes,
    UnsupportedError for rope kinds, activations and quantization formats that are not known.
    """
    quantization = config.table("quantization_config")
    if quantization:
        raise UnsupportedError(
            f"{config.path}: already quantized ({quantization.get('quant_method', 'unknown method')}); "
            "export from the model as it was before that"
        )
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    head_dim = config.optional_integer("head_dim")
    if head_dim is None:
        if hidden % heads:
            raise CheckpointError(f"{config.path}: no head_dim, and {heads} heads do not divide hidden_size {hidden}")
        head_dim = hidden // heads
    values: dict[str, Any] = {
        "family": family,
        "vocab_size": config.integer("vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": config.integer("intermediate_size"),
        "heads": heads,
        "kv_heads": config.integer("num_key_value_heads", heads),
        "head_dim": head_dim,
        "layers": (LayerSpec(),) * config.integer("num_hidden_layers"),
        "context": config.integer("max_position_embeddings"),
        "norm_eps": config.number("rms_norm_eps", 1e-6),
        "attention_scale": head_dim**-0.5,
        "activation": _activation(config),
    }
    values |= fields
    if "ropes" not in values:
        values["ropes"] = (read_rope(config, head_dim),)
    try:
        return DecoderSpec(**values)
    except BundleError as error:
        raise CheckpointError(f"{config.path}: {error}") from error


def read_rope(config: Config, head_dim: int) -> RopeSpec:
    """The rope of all layers, from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before).

    Raises UnsupportedError for a kind that is not known or that turns only a part of each head, CheckpointError for a
    kind whose parameters are missing.
    """
    scaling = config.table("rope_parameters") or config.table("rope_scaling") or {}
    if any(isinstance(value, Mapping) for value in scaling.values()):
        raise UnsupportedError(f"{config.path}: rope parameters that differ between layer types are not supported here")
    values = Config(config.path, scaling, {"rope_theta": config.number("rope_theta", 10000.0)})
    theta = values.number("rope_theta")
    partial = values.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0))
    if partial != 1.0:
        raise UnsupportedError(f"{config.path}: rope over {partial} of each head is not supported here")
    # "rope_type" replaced "type"; where both are written the newer one counts.
    kind = values.text("rope_type", values.text("type", "default"))
    if kind == "default":
        return RopeSpec(head_dim, theta)
    if kind == "linear":
        return RopeSpec(head_dim, theta, "linear", values.number("factor"))
    if kind != "llama3":
        raise UnsupportedError(f"{config.path}: rope type {kind!r} is not known; known are default, linear, llama3")
    low, high = values.number("low_freq_factor"), values.number("high_freq_factor")
    if low >= high:
        raise CheckpointError(f"{config.path}: rope low_freq_factor {low} must be below high_freq_factor {high}")
    original = values.integer("original_max_position_embeddings", config.integer("max_position_embeddings"))
    return RopeSpec(head_dim, theta, "llama3", values.number("factor"), low, high, original)


def windowed_layers(config: Config, window: int | None, first: int = 0) -> tuple[LayerSpec, ...]:
    """Layers of which those from `first` on see `window` tokens; the config's own `layer_types` decide if it has them.

    Raises UnsupportedError for a layer type that is not attention over everything or over a window.
    """
    count = config.integer("num_hidden_layers")
    types = config.get("layer_types")
    if types is None:
        return tuple(LayerSpec(window if index >= first else None) for index in range(count))
    if not isinstance(types, list) or len(types) != count:
        raise CheckpointError(f"{config.path}: layer_types does not name the type of each of {count} layers")
    unknown = next((kind for kind in types if kind not in ("full_attention", "sliding_attention")), None)
    if unknown is not None:
        raise UnsupportedError(f"{config.path}: layers of type {unknown!r}; known: full_attention, sliding_attention")
    return tuple(LayerSpec(window if kind == "sliding_attention" else None) for kind in types)


def _activation(config: Config) -> Activation:
    name = config.text("hidden_act", "silu")
    if name not in ACTIVATIONS:
        raise UnsupportedError(f"{config.path}: activation {name!r} is not known; known are {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]
