"""The ropes that a config describes, whichever of its spellings it uses. Facts: transformers' modeling_rope_utils."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from edge.decoder import RopeSpec
from edge.errors import CheckpointError, UnsupportedError
from exporters.architectures.config import Config

Settings = Mapping[str, Any]


def settings_of(config: Config) -> Settings:
    """The table of a config that describes its rope: `rope_scaling`, or `rope_parameters` since transformers 5.

    Where both are written, the older one counts, as in transformers.
    """
    return config.table("rope_scaling") or config.table("rope_parameters") or {}


def read_rope(config: Config, head_dim: int, settings: Settings | None = None, *, partial: bool = False) -> RopeSpec:
    """The rope of all layers, or the one that `settings` describe. `partial`: families may rotate a part of each head.

    Raises UnsupportedError for a kind that is not known or that rotates only a part of each head where the family
    rotates all of it, CheckpointError for a kind whose parameters are missing.
    """
    settings = settings_of(config) if settings is None else settings
    if any(isinstance(value, Mapping) for value in settings.values()):
        raise UnsupportedError(f"{config.path}: rope parameters that differ between layer types are not supported here")
    values = Config(config.path, settings, {"rope_theta": config.number("rope_theta", 10000.0)})
    share = values.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0))
    if share > 1.0:
        raise values.wrong("partial_rotary_factor", share, "a share of each head, at most 1")
    if share != 1.0 and not partial:
        raise UnsupportedError(f"{config.path}: rope over {share} of each head is not supported here")
    # "rope_type" replaced "type"; where both are written the newer one counts.
    kind = values.text("rope_type", values.text("type", "default"))
    if kind not in _KINDS:
        raise UnsupportedError(f"{config.path}: rope type {kind!r} is not known; known are {', '.join(_KINDS)}")
    return _KINDS[kind](config, values, RopeSpec(int(head_dim * share), values.number("rope_theta")))


def layered_ropes(config: Config, head_dim: int, *, local_theta: float) -> tuple[RopeSpec, RopeSpec]:
    """The rope of layers that see a window, and that of the others.

    transformers 5 writes one table for each; before it, `rope_scaling` was that of the others and the window layers
    had none and `local_theta`. Where both are written, `rope_scaling` counts key by key, as in transformers.
    """
    tables = Config(config.path, config.table("rope_parameters") or {}, {})
    local = {"rope_theta": local_theta, **(tables.table("sliding_attention") or {})}
    full, scaling = tables.table("full_attention"), config.table("rope_scaling") or {}
    others = settings_of(config) if full is None else {**full, **scaling}
    return read_rope(config, head_dim, local), read_rope(config, head_dim, others)


def _default(config: Config, values: Config, rope: RopeSpec) -> RopeSpec:
    return rope


def _linear(config: Config, values: Config, rope: RopeSpec) -> RopeSpec:
    return replace(rope, kind="linear", factor=values.number("factor"))


def _dynamic(config: Config, values: Config, rope: RopeSpec) -> RopeSpec:
    original = config.integer("max_position_embeddings")
    return replace(rope, kind="dynamic", factor=values.number("factor"), original_context=original)


def _llama3(config: Config, values: Config, rope: RopeSpec) -> RopeSpec:
    bounds = values.number("low_freq_factor"), values.number("high_freq_factor")
    return _banded(config, values, replace(rope, kind="llama3", factor=values.number("factor")), bounds)


def _yarn(config: Config, values: Config, rope: RopeSpec) -> RopeSpec:
    if not values.flag("truncate", True):
        raise UnsupportedError(f"{config.path}: rope type yarn without truncation of its bounds is not supported")
    factor = _stretch(config, values)
    rope = replace(rope, kind="yarn", factor=factor, attention_factor=_yarn_attention(values, factor))
    return _banded(config, values, rope, (values.number("beta_slow", 1.0), values.number("beta_fast", 32.0)))


def _yarn_attention(values: Config, factor: float) -> float:
    """The attention factor of YaRN (arXiv:2309.00071), with DeepSeek's two scales of it where they are given."""
    if values.get("attention_factor") is not None:
        return values.number("attention_factor")

    def magnitude(scale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    if values.get("mscale") and values.get("mscale_all_dim"):
        return magnitude(values.number("mscale")) / magnitude(values.number("mscale_all_dim"))
    return magnitude(1.0)


def _longrope(config: Config, values: Config, rope: RopeSpec) -> RopeSpec:
    original, factor = _original(config, values), _stretch(config, values)
    if factor > 1 and original < 2:
        raise config.wrong("original_max_position_embeddings", original, "more than one token for longrope")
    plain = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return replace(
        rope,
        kind="longrope",
        original_context=original,
        attention_factor=values.number("attention_factor", plain),
        short_factors=_numbers(values, "short_factor"),
        long_factors=_numbers(values, "long_factor"),
    )


def _banded(config: Config, values: Config, rope: RopeSpec, bounds: tuple[float, float]) -> RopeSpec:
    """The bounds of the blend, in rotations over the original context."""
    low, high = bounds
    if low >= high:
        raise CheckpointError(
            f"{config.path}: rope type {rope.kind}: the bounds of its blend are {low} and {high} rotations; "
            "the first must be below the second"
        )
    return replace(rope, low_freq_factor=low, high_freq_factor=high, original_context=_original(config, values))


def _original(config: Config, values: Config) -> int:
    """The context before it was stretched. A value beside the rope's own table counts more than one in it."""
    name, whole = "original_max_position_embeddings", config.integer("max_position_embeddings")
    return config.integer(name, values.integer(name, whole))


def _stretch(config: Config, values: Config) -> float:
    ratio = config.integer("max_position_embeddings") / _original(config, values)
    return values.number("factor", ratio)


def _numbers(values: Config, name: str) -> tuple[float, ...]:
    found = values.get(name)
    numbers = isinstance(found, list | tuple) and all(type(item) in (int, float) and 0 < item < 1e300 for item in found)
    if not numbers:
        raise values.wrong(name, found, "a list of positive numbers")
    return tuple(map(float, found))


_KINDS: Mapping[str, Callable[[Config, Config, RopeSpec], RopeSpec]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
}
