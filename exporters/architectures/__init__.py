"""The model families that can be exported: one literal table, and the way from a checkpoint to a model.

A family is a small module of data (`FAMILY`), imported when a checkpoint names it. See docs/adding-a-family.md.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from edge.decoder import DecoderSpec
from edge.errors import CheckpointError, UnsupportedError, found_in
from exporters.architectures.config import Config
from exporters.architectures.family import Family
from exporters.architectures.spec import read_spec
from exporters.architectures.weights import find_weights
from exporters.checkpoint import Checkpoint, SourceTensor

# `architectures` of a config.json → module
HUGGING_FACE = {
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "Gemma3ForConditionalGeneration": "gemma3_vision",
    "GemmaForCausalLM": "gemma",
    "GraniteForCausalLM": "granite",
    "GraniteMoeForCausalLM": "granitemoe",
    "LlamaForCausalLM": "llama",
    "MinistralForCausalLM": "mistral",
    "MistralForCausalLM": "mistral",
    "Olmo2ForCausalLM": "olmo2",
    "Olmo3ForCausalLM": "olmo3",
    "OlmoeForCausalLM": "olmoe",
    "Phi3ForCausalLM": "phi3",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "SmolLM3ForCausalLM": "smollm3",
}
# `general.architecture` of a GGUF file → module
GGUF = {
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3": "gemma3",
    "granite": "granite",
    "granitemoe": "granitemoe",
    "llama": "llama",
    "olmo2": "olmo2",
    "olmoe": "olmoe",
    "phi3": "phi3",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "smollm3": "smollm3",
}


@dataclass(frozen=True, slots=True)
class Model:
    """A checkpoint understood: what it computes, and each weight of its graph by canonical name, still unread.

    `notes` are for the quality report: what of the checkpoint is not exported.
    """

    spec: DecoderSpec
    weights: Mapping[str, SourceTensor]
    notes: tuple[str, ...] = ()


def describe(checkpoint: Checkpoint) -> Model:
    """Say what a checkpoint is, with every tensor accounted for before any is exported.

    Raises UnsupportedError for an unknown architecture (naming it and the known ones) or rope kind, CheckpointError
    for a config that lacks something or tensors that do not fit it.
    """
    family = find_family(checkpoint)
    config = _config(checkpoint, family)
    spec = decoder_spec(config, family)
    if checkpoint.kind == "gguf" and family.gguf_whole_norms:
        spec = replace(spec, norm_offset=0.0)
    tied = config.flag("tie_word_embeddings")
    spec, weights = find_weights(checkpoint, family, spec, family.scales(config), tied=tied)
    prefixes = family.foreign_prefixes(len(spec.layers))
    left_out = sum(name.startswith(prefixes) for name in checkpoint.tensors)
    parts = ", ".join(prefix.rstrip(".") for prefix in prefixes)
    notes = (f"{left_out} tensors of other parts of the model ({parts}) are left out",) if left_out else ()
    return Model(spec, weights, notes)


def decoder_spec(config: Config, family: Family) -> DecoderSpec:
    """The spec that a config describes. Raises UnsupportedError, and CheckpointError, which names the config."""
    with found_in(CheckpointError, config.path):
        return read_spec(config, family.name, family.fields(config))


def find_family(checkpoint: Checkpoint) -> Family:
    """The family that a checkpoint names. Raises UnsupportedError for an unknown one."""
    table, named = GGUF if checkpoint.kind == "gguf" else HUGGING_FACE, checkpoint.architecture
    if named not in table:
        raise UnsupportedError(
            f"{checkpoint.path}: architecture {named!r} is not supported; supported are {', '.join(sorted(table))}"
        )
    family: Family = importlib.import_module(f"exporters.architectures.{table[named]}").FAMILY
    return family


def _config(checkpoint: Checkpoint, family: Family) -> Config:
    """The decoder's config with the defaults of its family and format."""
    if checkpoint.kind == "gguf":
        return Config(checkpoint.path, checkpoint.config, {**family.defaults, **family.gguf_defaults})
    values = checkpoint.config
    if family.section:
        section = values.get(family.section)
        if not isinstance(section, Mapping):
            raise CheckpointError(
                f"{checkpoint.path}: the config has no table {family.section}, which describes the decoder"
            )
        values = {**values, **section}
    return Config(checkpoint.path, values, family.defaults)
