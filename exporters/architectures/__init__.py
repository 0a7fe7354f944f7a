"""The model families that can be exported: one literal table, and the way from a checkpoint to a model.

A family is a small module of data (`FAMILY`), imported when a checkpoint names it.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass

from edge.decoder import DecoderSpec
from edge.errors import UnsupportedError
from exporters.architectures.config import Config, read_spec
from exporters.architectures.family import Family
from exporters.architectures.weights import find_weights
from exporters.checkpoint import Checkpoint, SourceTensor

# `architectures` of a config.json → module
HUGGING_FACE = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
}
# `general.architecture` of a GGUF file → module
GGUF = {
    "llama": "llama",
    "qwen2": "qwen2",
}


@dataclass(frozen=True, slots=True)
class Model:
    """A checkpoint understood: what it computes, and each weight of its graph by canonical name, still unread."""

    spec: DecoderSpec
    weights: Mapping[str, SourceTensor]


def describe(checkpoint: Checkpoint) -> Model:
    """Say what a checkpoint is, with every tensor accounted for before any is exported.

    Raises UnsupportedError for an unknown architecture (naming it and the known ones) or rope kind, CheckpointError
    for a config that lacks something or tensors that do not fit it.
    """
    family = find_family(checkpoint)
    config = Config(checkpoint.path, checkpoint.config, family.defaults)
    spec = read_spec(config, family.name, family.fields(config))
    spec, weights = find_weights(checkpoint, family, spec, tied=config.flag("tie_word_embeddings"))
    return Model(spec, weights)


def find_family(checkpoint: Checkpoint) -> Family:
    """The family that a checkpoint names. Raises UnsupportedError for an unknown one."""
    table, named = GGUF if checkpoint.kind == "gguf" else HUGGING_FACE, checkpoint.architecture
    if named not in table:
        raise UnsupportedError(
            f"{checkpoint.path}: architecture {named!r} is not supported; supported are {', '.join(sorted(table))}"
        )
    family: Family = importlib.import_module(f"exporters.architectures.{table[named]}").FAMILY
    return family
