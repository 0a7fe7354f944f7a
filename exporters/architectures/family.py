"""What a model family is: a few facts beside the reading of a config that all families share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from exporters.architectures import names
from exporters.architectures.config import Config


@dataclass(frozen=True, slots=True)
class Family:
    """A family as data.

    name            DecoderSpec.family
    fields          the DecoderSpec fields that differ from the shared reading, given the config
    defaults        what a config key means when it is absent, where transformers' class for the family says so
    hugging_face    canonical name → name in a Hugging Face checkpoint
    gguf            canonical name → name in a GGUF file
    interleaved     GGUF files hold the rows of q and k with rotary pairs side by side (see `HalfSplitRows`)
    """

    name: str
    fields: Callable[[Config], Mapping[str, Any]]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    hugging_face: Mapping[str, str] = field(default_factory=lambda: names.HUGGING_FACE)
    gguf: Mapping[str, str] = field(default_factory=lambda: names.GGUF)
    interleaved: bool = False
