"""Finding a spec's weights in a checkpoint: every one there, of the right shape, and nothing left over."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.decoder import DecoderSpec
from edge.errors import CheckpointError
from edge.graph import build
from edge.payload import Scheme
from exporters.architectures.family import Family
from exporters.architectures.names import part_of, source_name
from exporters.checkpoint import Checkpoint, SourceTensor
from exporters.checkpoint.source import row_range

# Constants that old checkpoints store although they follow from the config.
_DERIVED = re.compile(r"(.*\.)?rotary_emb\.inv_freq|rope_freqs\.weight")
_COMPARE_ROWS = 256


@dataclass(frozen=True, slots=True)
class HalfSplitRows:
    """Rows of q or k with the two numbers of a rotary pair side by side, shown half-split: i and i + head_dim / 2.

    llama.cpp's converter stores row 2j + p of a head where Hugging Face has row j + p * head_dim / 2. Rows move whole,
    so codes are carried like numbers. `heads` are the heads of this tensor: the kv heads for k.
    """

    inner: SourceTensor
    heads: int

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def shape(self) -> tuple[int, ...]:
        return self.inner.shape

    @property
    def dtype(self) -> str:
        return self.inner.dtype

    @property
    def scheme(self) -> Scheme | None:
        return self.inner.scheme

    def read(self, start: int = 0, stop: int | None = None) -> npt.NDArray[np.float32]:
        first, last, order = self._order(start, stop)
        return self.inner.read(first, last)[order]

    def codes(self, start: int = 0, stop: int | None = None) -> dict[str, npt.NDArray[Any]]:
        first, last, order = self._order(start, stop)
        return {name: part[order] for name, part in self.inner.codes(first, last).items()}

    def _order(self, start: int, stop: int | None) -> tuple[int, int, npt.NDArray[np.int64]]:
        """The whole heads to read, and where among their rows each wanted one is."""
        start, count, _ = row_range(self.shape, start, stop)
        dim = self.shape[0] // self.heads
        first = start // dim * dim
        last = -(-(start + count) // dim) * dim
        rows = np.arange(start, start + count)
        head, row = rows // dim, rows % dim
        return first, max(first, last), head * dim + row % (dim // 2) * 2 + row // (dim // 2) - first


def find_weights(
    checkpoint: Checkpoint, family: Family, spec: DecoderSpec, *, tied: bool
) -> tuple[DecoderSpec, dict[str, SourceTensor]]:
    """The spec with `tied_head` as the data has it, and every weight of its graph by canonical name.

    `tied` is what the config says of the head; it counts only where the checkpoint stores none (known fault C1).
    Raises CheckpointError for missing, misshapen and left-over tensors.
    """
    names = family.gguf if checkpoint.kind == "gguf" else family.hugging_face
    head, embed = source_name("head", names), source_name("embed", names)
    stored = checkpoint.tensors.get(head)
    used: set[str] = set()
    if stored is None:
        if not tied:
            raise CheckpointError(
                f"{checkpoint.path}: no output head: the checkpoint has no tensor {head!r} and the config does not "
                "tie the head to the embedding"
            )
    else:
        used.add(head)
        tied = embed in checkpoint.tensors and _equal(stored, checkpoint.tensors[embed])
    spec = replace(spec, tied_head=tied)
    weights: dict[str, SourceTensor] = {}
    for weight in build(spec).weights:
        name = source_name(weight.name, names)
        tensor = checkpoint.tensors.get(name)
        if tensor is None:
            raise CheckpointError(
                f"{checkpoint.path}: the weight {weight.name} is missing: there is no tensor {name!r}"
            )
        if tensor.shape != weight.shape:
            raise CheckpointError(
                f"{checkpoint.path}: tensor {name!r} has the shape {list(tensor.shape)}; "
                f"the config makes {weight.name} {list(weight.shape)}"
            )
        used.add(name)
        weights[weight.name] = _half_split(tensor, weight.name, checkpoint, family, spec)
    _check_leftovers(checkpoint, used)
    return spec, weights


def _half_split(
    tensor: SourceTensor, canonical: str, checkpoint: Checkpoint, family: Family, spec: DecoderSpec
) -> SourceTensor:
    heads = {"attn.q": spec.heads, "attn.k": spec.kv_heads}.get(part_of(canonical))
    if heads is None or not family.interleaved or checkpoint.kind != "gguf":
        return tensor
    return HalfSplitRows(tensor, heads)


def _equal(first: SourceTensor, second: SourceTensor) -> bool:
    """Whether two tensors hold the same numbers. Reads in blocks and stops at the first that differs."""
    if first.shape != second.shape:
        return False
    blocks = range(0, first.shape[0], _COMPARE_ROWS)
    ends = (min(start + _COMPARE_ROWS, first.shape[0]) for start in blocks)
    return all(
        np.array_equal(first.read(start, end), second.read(start, end)) for start, end in zip(blocks, ends, strict=True)
    )


def _check_leftovers(checkpoint: Checkpoint, used: set[str]) -> None:
    left: Mapping[str, SourceTensor] = checkpoint.tensors
    names = sorted(name for name in left if name not in used and not _DERIVED.fullmatch(name))
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise CheckpointError(
            f"{checkpoint.path}: tensor {names[0]!r}{more} would be ignored: this architecture has no such weight, so "
            "the config does not describe this checkpoint"
        )
