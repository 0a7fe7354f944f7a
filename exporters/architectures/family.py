"""What a model family is: a few facts beside the reading of a config that all families share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from exporters.architectures import names
from exporters.architectures.config import Config


def _unscaled(config: Config) -> Mapping[str, float]:
    return {}


@dataclass(frozen=True, slots=True)
class Family:
    """A family as data. In name maps, `{}` stands for the number of the layer.

    name            DecoderSpec.family
    fields          the DecoderSpec fields that differ from the shared reading, given the config
    defaults        what a config key means when it is absent, where transformers' class for the family says so
    hugging_face    canonical name → name in a Hugging Face checkpoint; weights that share a name are its rows, one
                    after another in the order of the graph
    gguf            canonical name → name in a GGUF file, likewise
    scales          canonical name → what its weights are multiplied by, given the config
    section         the key of a Hugging Face config that holds the decoder's, where the decoder is a part of the model
    left_out        prefixes of the tensors of other parts of the model, which are not exported; `{}` in one stands for
                    the number of layers
    gguf_defaults   what an absent key means in a GGUF file, where that is something else than in a config
    interleaved     the kinds of checkpoint that hold rotary pairs of rows side by side (see `HalfSplitRows`)
    by_head         canonical names of weights that a checkpoint fuses head by head: the rows of the first for a head,
                    then those of the others for that head
    gguf_whole_norms    GGUF files hold norm weights with the spec's `norm_offset` added
    """

    name: str
    fields: Callable[[Config], Mapping[str, Any]]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    hugging_face: Mapping[str, str] = field(default_factory=lambda: names.HUGGING_FACE)
    gguf: Mapping[str, str] = field(default_factory=lambda: names.GGUF)
    scales: Callable[[Config], Mapping[str, float]] = _unscaled
    section: str = ""
    left_out: tuple[str, ...] = ()
    gguf_defaults: Mapping[str, Any] = field(default_factory=dict)
    interleaved: tuple[str, ...] = ()
    by_head: tuple[str, ...] = ()
    gguf_whole_norms: bool = False

    def foreign_prefixes(self, layers: int) -> tuple[str, ...]:
        """`left_out` for a decoder of that many layers."""
        return tuple(prefix.format(layers) for prefix in self.left_out)
