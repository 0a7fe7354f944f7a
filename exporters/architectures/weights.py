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
from exporters.architectures.names import EXPERT, part_of, source_name
from exporters.architectures.stacks import EachTransposed, Flat, RowsOfEach, Stacked
from exporters.architectures.views import HalfSplitRows, RowSlice, Scaled
from exporters.checkpoint import Checkpoint, SourceTensor

# Constants that checkpoints store although they follow from the config.
_DERIVED = re.compile(r"(.*\.)?rotary_emb\.inv_freq|rope_freqs\.weight|rope_factors_(long|short)\.weight")
_COMPARE_ROWS = 256
_ROTATED = ("query", "key", "query_rope", "key_rope")


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
        for weight, rows in zip(sharing, _taken_apart(tensor, sharing, family), strict=True):
            weights[weight.name] = _shown(rows, weight, checkpoint, family, scales)
        used.update(_tensor_names(name, sharing[0]))
    _check_leftovers(checkpoint, used, family.foreign_prefixes(len(spec.layers)))
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


def _tensor_names(name: str, weight: Weight) -> list[str]:
    """The tensors that a name stands for: one for each expert where it has a place for their numbers."""
    return [name.replace(EXPERT, str(expert)) for expert in range(weight.shape[0])] if EXPERT in name else [name]


def _fitting(checkpoint: Checkpoint, name: str, sharing: list[Weight]) -> SourceTensor:
    """What holds these weights, as one matrix, if it is there and holds exactly them."""
    first, found = sharing[0], []
    rows, *rest = (sum(_source_shape(weight)[0] for weight in sharing), *_source_shape(first)[1:])
    names = _tensor_names(name, first)
    for each in names:
        tensor = checkpoint.tensors.get(each)
        if tensor is None:
            raise CheckpointError(f"{checkpoint.path}: the weight {first.name} is missing: there is no tensor {each!r}")
        flat = Flat(tensor) if len(tensor.shape) == 3 else tensor
        if flat.shape != (rows // len(names), *rest):
            together = "" if len(sharing) == 1 else f" and {len(sharing) - 1} more in it"
            raise CheckpointError(
                f"{checkpoint.path}: tensor {each!r} has the shape {list(tensor.shape)}; "
                f"the config makes {first.name}{together} {[rows // len(names), *rest]}"
            )
        found.append(flat)
    return found[0] if len(found) == 1 else Stacked(tuple(found))


def _source_shape(weight: Weight) -> tuple[int, ...]:
    """The shape in which checkpoints store a weight, a stack's matrices under one another."""
    if weight.role == "key_up":  # the graph has each head's matrix transposed
        heads, latent, nope = weight.shape
        return (heads * nope, latent)
    return weight.stored


def _taken_apart(tensor: SourceTensor, sharing: list[Weight], family: Family) -> list[SourceTensor]:
    """The rows of each weight of a tensor: one weight after another, or so within each head or expert."""
    if len(sharing) == 1:
        return [tensor]
    first, found = 0, list[SourceTensor]()
    for weight in sharing:
        count = weight.shape[0] if len(weight.shape) == 3 else 1
        if part_of(weight.name) in family.by_head and count == 1:
            count = weight.shape[0] // weight.head_dim
        rows = _source_shape(weight)[0] // count
        found.append(RowsOfEach(tensor, count, first, rows) if count > 1 else RowSlice(tensor, first, rows))
        first += rows
    return found


def _shown(
    tensor: SourceTensor, weight: Weight, checkpoint: Checkpoint, family: Family, scales: Mapping[str, float]
) -> SourceTensor:
    """The tensor in the graph's order and magnitude."""
    if weight.role in _ROTATED and checkpoint.kind in family.interleaved:
        tensor = HalfSplitRows(tensor, weight.shape[0] // weight.head_dim)
    if weight.role == "key_up":
        tensor = EachTransposed(tensor, weight.shape[0])
    scale = scales.get(part_of(weight.name), 1.0)
    return tensor if scale == 1.0 else Scaled(tensor, scale)


def _equal(first: SourceTensor, second: SourceTensor) -> bool:
    """Whether two tensors hold the same numbers. Reads some rows at a time and stops at the first that differs."""
    if first.shape != second.shape:
        return False
    starts = range(0, first.shape[0], _COMPARE_ROWS)
    ends = (min(start + _COMPARE_ROWS, first.shape[0]) for start in starts)
    return all(
        np.array_equal(first.read(start, end), second.read(start, end)) for start, end in zip(starts, ends, strict=True)
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
