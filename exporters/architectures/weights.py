"""Finding a spec's weights in a checkpoint: every one there, of the right shape, and nothing left over."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from edge.decoder import DecoderSpec
from edge.errors import CheckpointError
from edge.graph import build
from edge.ops import Weight
from exporters.architectures.family import Family
from exporters.architectures.names import part_of, source_name
from exporters.architectures.views import HalfSplitRows, RowSlice, Scaled
from exporters.checkpoint import Checkpoint, SourceTensor

# Constants that checkpoints store although they follow from the config.
_DERIVED = re.compile(r"(.*\.)?rotary_emb\.inv_freq|rope_freqs\.weight|rope_factors_(long|short)\.weight")
_COMPARE_ROWS = 256


def find_weights(
    checkpoint: Checkpoint, family: Family, spec: DecoderSpec, scales: Mapping[str, float], *, tied: bool
) -> tuple[DecoderSpec, dict[str, SourceTensor]]:
    """The weights of a spec's graph by canonical name, and the spec with its head as the checkpoint has it.

    The head is the embedding where the config ties them, unless another head is stored (known fault C1). Raises
    CheckpointError for missing, misshapen and left-over tensors.
    """
    names = dict(family.gguf if checkpoint.kind == "gguf" else family.hugging_face)
    if tied and source_name("embed", names) not in checkpoint.tensors:
        names["embed"] = names["head"]  # tied weights are stored once, under either name
    tied = _tied(checkpoint, source_name("head", names), source_name("embed", names), tied)
    spec = replace(spec, tied_head=tied)
    weights: dict[str, SourceTensor] = {}
    used = {source_name("head", names)}
    for name, sharing in _by_source(build(spec).weights, names).items():
        tensor = _fitting(checkpoint, name, sharing)
        first = 0
        for weight in sharing:
            rows = tensor if len(sharing) == 1 else RowSlice(tensor, first, weight.shape[0])
            weights[weight.name] = _shown(rows, weight, checkpoint, family, scales)
            first += weight.shape[0]
        used.add(name)
    _check_leftovers(checkpoint, used, family.left_out)
    return spec, weights


def _tied(checkpoint: Checkpoint, head: str, embed: str, tied: bool) -> bool:
    """Whether the head is the embedding."""
    stored = checkpoint.tensors.get(head)
    if stored is not None:
        return embed in checkpoint.tensors and _equal(stored, checkpoint.tensors[embed])
    if not tied:
        raise CheckpointError(
            f"{checkpoint.path}: no output head: the checkpoint has no tensor {head!r} and the config does not "
            "tie the head to the embedding"
        )
    return True


def _by_source(weights: tuple[Weight, ...], names: Mapping[str, str]) -> dict[str, list[Weight]]:
    """The graph's weights by the tensor that holds them: more than one where a checkpoint fuses them."""
    found: dict[str, list[Weight]] = {}
    for weight in weights:
        found.setdefault(source_name(weight.name, names), []).append(weight)
    return found


def _fitting(checkpoint: Checkpoint, name: str, sharing: list[Weight]) -> SourceTensor:
    """The tensor of that name, if it is there and holds exactly these weights."""
    tensor, first = checkpoint.tensors.get(name), sharing[0]
    if tensor is None:
        raise CheckpointError(f"{checkpoint.path}: the weight {first.name} is missing: there is no tensor {name!r}")
    rows = sum(weight.shape[0] for weight in sharing)
    if tensor.shape != (rows, *first.shape[1:]):
        together = "" if len(sharing) == 1 else f" and {len(sharing) - 1} more in it"
        raise CheckpointError(
            f"{checkpoint.path}: tensor {name!r} has the shape {list(tensor.shape)}; "
            f"the config makes {first.name}{together} {[rows, *first.shape[1:]]}"
        )
    return tensor


def _shown(
    tensor: SourceTensor, weight: Weight, checkpoint: Checkpoint, family: Family, scales: Mapping[str, float]
) -> SourceTensor:
    """The tensor in the graph's order and magnitude."""
    if weight.role in ("query", "key") and family.interleaved and checkpoint.kind == "gguf":
        tensor = HalfSplitRows(tensor, weight.shape[0] // weight.head_dim)
    scale = scales.get(part_of(weight.name), 1.0)
    return tensor if scale == 1.0 else Scaled(tensor, scale)


def _equal(first: SourceTensor, second: SourceTensor) -> bool:
    """Whether two tensors hold the same numbers. Reads in blocks and stops at the first that differs."""
    if first.shape != second.shape:
        return False
    blocks = range(0, first.shape[0], _COMPARE_ROWS)
    ends = (min(start + _COMPARE_ROWS, first.shape[0]) for start in blocks)
    return all(
        np.array_equal(first.read(start, end), second.read(start, end)) for start, end in zip(blocks, ends, strict=True)
    )


def _check_leftovers(checkpoint: Checkpoint, used: set[str], left_out: tuple[str, ...]) -> None:
    left: Mapping[str, SourceTensor] = checkpoint.tensors
    unused = (name for name in left if name not in used and not _DERIVED.fullmatch(name))
    names = sorted(name for name in unused if not name.startswith(left_out) and not _adds_nothing(left[name]))
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise CheckpointError(
            f"{checkpoint.path}: tensor {names[0]!r}{more} would be ignored: this architecture has no such weight, so "
            "the config does not describe this checkpoint"
        )


def _adds_nothing(tensor: SourceTensor) -> bool:
    """A bias of zeros, which some quantizers store for every matrix whether the model has biases or not."""
    return tensor.name.endswith(".bias") and len(tensor.shape) == 1 and not tensor.read().any()
