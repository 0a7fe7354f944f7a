"""GGUF files as checkpoints: tensors read by rows, block-quantized codes carried over, metadata as a config.

Blocks of 32 numbers (ggml's ggml-common.h), d and m float16:

    Q4_0   d, 16 bytes              number = d * (code - 8)
    Q4_1   d, m, 16 bytes           number = d * code + m
    Q8_0   d, 32 signed bytes       number = d * code

where byte i of the 16 holds code i in its low nibble and code i + 16 in its high one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.errors import CheckpointError, InternalError, UnsupportedError
from edge.payload import Scheme, dequantize
from exporters.checkpoint import SourceTensor, TokenizerFiles
from exporters.checkpoint.gguf_config import read_architecture, read_config
from exporters.checkpoint.gguf_container import BlockType, GgufTensorInfo
from exporters.checkpoint.gguf_split import read_shards
from exporters.checkpoint.gguf_tokenizer import rebuild_tokenizer
from exporters.checkpoint.sampling import from_gguf
from exporters.checkpoint.source import PLAIN_DTYPES, SourceFile, row_range, to_float32

Bytes = npt.NDArray[np.uint8]

CARRIED = {"Q4_0": Scheme(4, 32, "sym"), "Q4_1": Scheme(4, 32, "affine"), "Q8_0": Scheme(8, 32, "sym")}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor of a GGUF file."""

    info: GgufTensorInfo
    file: SourceFile

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def shape(self) -> tuple[int, ...]:
        return self.info.shape

    @property
    def dtype(self) -> str:
        return self.info.type.name

    @property
    def scheme(self) -> Scheme | None:
        return CARRIED.get(self.dtype) if len(self.shape) > 1 else None

    @property
    def note(self) -> str:
        plain = self.dtype in PLAIN_DTYPES or self.scheme is not None
        return "" if plain else f"no scheme holds {self.dtype} blocks exactly: dequantized"

    def read(self, start: int = 0, stop: int | None = None) -> npt.NDArray[np.float32]:
        """Rows start…stop as float32 [rows, …], dequantized exactly as the gguf package does."""
        start, rows, width = row_range(self.shape, start, stop)
        if not rows:  # which the gguf package cannot take
            return np.empty((0, *self.shape[1:]), np.float32)
        if self.scheme is not None:
            return dequantize(self.scheme, self.codes(start, start + rows), width).reshape(rows, *self.shape[1:])
        raw = self._bytes(start, rows, width)
        if self.dtype in PLAIN_DTYPES:
            return to_float32(raw.reshape(-1), self.dtype).reshape(rows, *self.shape[1:])
        if len(self.shape) == 1:
            raw = self.file.read(self.info.start, self.info.size, self.name).reshape(1, -1)
        values = _dequantize(raw, self.info.type)
        return (
            values.reshape(-1)[start : start + rows] if len(self.shape) == 1 else values.reshape(rows, *self.shape[1:])
        )

    def codes(self, start: int = 0, stop: int | None = None) -> dict[str, npt.NDArray[Any]]:
        """Rows start…stop in the layout of edge.payload: the file's own codes and scales, only moved.

        Of a stack of matrices the rows of each are side by side in one row.
        """
        if self.scheme is None:
            raise InternalError(f"tensor {self.name!r} is {self.dtype} {list(self.shape)}: it has no codes to carry")
        start, rows, width = row_range(self.shape, start, stop)
        blocks = self._bytes(start, rows, width).reshape(rows, width // 32, self.info.type.size)
        parts: dict[str, npt.NDArray[Any]] = {"scales": _half(blocks, 0)}
        if self.dtype == "Q8_0":
            # A signed byte plus 128 is the same byte with its top bit flipped.
            parts["codes"] = np.bitwise_xor(blocks[..., 2:], 0x80).reshape(rows, width)
        elif self.dtype == "Q4_1":
            parts["offsets"] = _half(blocks, 2)
            parts["codes"] = _join_nibbles(blocks[..., 4:]).reshape(rows, width // 2)
        else:
            parts["codes"] = _join_nibbles(blocks[..., 2:]).reshape(rows, width // 2)
        return parts

    def _bytes(self, start: int, rows: int, width: int) -> Bytes:
        """The raw bytes of some rows, [rows, row bytes]. A row of a vector of blocks cannot be told apart."""
        row_bytes = width // self.info.type.block * self.info.type.size
        return self.file.read(self.info.start + start * row_bytes, rows * row_bytes, self.name).reshape(rows, row_bytes)


def _half(blocks: Bytes, at: int) -> npt.NDArray[np.float16]:
    """The float16 at byte `at` of each block, [rows, blocks]."""
    return np.ascontiguousarray(blocks[..., at : at + 2]).view("<f2")[..., 0]


def _join_nibbles(nibbles: Bytes) -> Bytes:
    """16 bytes a block holding codes i and i + 16, to codes 2i and 2i + 1."""
    packed = np.empty_like(nibbles)
    low, high = nibbles & 15, nibbles >> 4
    packed[..., :8] = low[..., 0::2] | (low[..., 1::2] << 4)
    packed[..., 8:] = high[..., 0::2] | (high[..., 1::2] << 4)
    return packed


def _dequantize(raw: Bytes, kind: BlockType) -> npt.NDArray[np.float32]:
    """Any other block type, [rows, row bytes] to float32, through the gguf package (imported only when needed)."""
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize as gguf_dequantize

    try:
        return np.asarray(gguf_dequantize(raw, GGMLQuantizationType[kind.name]), np.float32)
    except NotImplementedError as error:
        raise UnsupportedError(
            f"tensors of type {kind.name} cannot be dequantized by the installed gguf package"
        ) from error


class GgufCheckpoint:
    """An opened GGUF file, or all shards of a split one. `open_checkpoint` is the way to get one."""

    kind = "gguf"

    def __init__(self, path: Path) -> None:
        shards = read_shards(path)
        path, first = shards[0]
        self.path = str(path)
        self.architecture = read_architecture(path, first.metadata)
        self._metadata = first.metadata
        self.files = tuple(shard for shard, _ in shards)
        stated = first.metadata.get("general.license")
        self.license = stated if isinstance(stated, str) else None
        self._types = {info.type for _, header in shards for info in header.tensors.values()}
        self._files: list[SourceFile] = []
        tensors: dict[str, SourceTensor] = {}
        try:
            for shard, header in shards:
                self._files.append(SourceFile(shard))
                tensors |= {name: GgufTensor(info, self._files[-1]) for name, info in header.tensors.items()}
        except CheckpointError:
            self.close()
            raise
        self.tensors: Mapping[str, SourceTensor] = tensors

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """Read on first use, so that an unknown architecture is named before anything else is found wrong with it.

        Raises UnsupportedError for settings and tensor types that cannot be read here, CheckpointError for bad values.
        """
        for kind in self._types:
            if kind.name not in PLAIN_DTYPES and kind.name not in CARRIED:
                _dequantize(np.zeros((1, kind.size), np.uint8), kind)  # refuse an unreadable type before any work
        return read_config(Path(self.path), self._metadata, self.tensors)

    def tokenizer(self) -> TokenizerFiles:
        """Rebuilt from tokenizer.ggml.*; raises CheckpointError where the metadata does not say how to split text."""
        return rebuild_tokenizer(Path(self.path), self._metadata)

    def sampling(self) -> Mapping[str, float]:
        return from_gguf(self._metadata, Path(self.path))

    def close(self) -> None:
        for file in self._files:
            file.close()
