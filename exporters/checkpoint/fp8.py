"""FP8 folders: weights of eight-bit floats with scales that each block of rows and columns shares.

    X.weight                               F8_E4M3 or F8_E5M2, [rows, columns]
    X.weight_scale, X.weight_scale_inv     what the block's numbers are multiplied by (`inv` too: it is the inverse of
                                           what they were multiplied by before): one number, one a row, or one a block

E4M3 is the variant without infinities (arXiv:2209.05433): exponent bias 7, largest 448, and 0x7F a NaN. E5M2 is the
upper byte of a float16. Scales of activations and of a KV cache do not change weights and are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.errors import CheckpointError
from exporters.checkpoint import SourceTensor
from exporters.checkpoint.source import PLAIN_DTYPES, row_range
from exporters.checkpoint.stored import OneStored, StoredTensor

DTYPES = ("F8_E4M3", "F8_E5M2")
_SCALES = ("weight_scale_inv", "weight_scale")
_OF_ACTIVATIONS = re.compile(r".*\.(input_scale|activation_scale|output_scale|k_scale|v_scale)")


def _e4m3() -> npt.NDArray[np.float32]:
    """The number of each of the 256 bytes."""
    byte = np.arange(256)
    exponent, fraction = byte >> 3 & 15, byte & 7
    size = np.where(exponent == 0, fraction * 2.0**-9, (8 + fraction) * 2.0 ** (exponent - 10))
    numbers = np.where(byte & 128, -size, size)
    numbers[[0x7F, 0xFF]] = np.nan
    return numbers.astype(np.float32)


_E4M3 = _e4m3()


@dataclass(frozen=True, slots=True)
class Fp8Tensor(OneStored):
    """An FP8 matrix; `block` is how many rows and columns share a scale."""

    scales: StoredTensor
    block: tuple[int, int]

    @property
    def note(self) -> str:
        return f"no scheme holds {self.dtype} numbers: dequantized"

    def read(self, start: int = 0, stop: int | None = None) -> npt.NDArray[np.float32]:
        start, rows, width = row_range(self.shape, start, stop)
        raw = self.stored.bits(start, start + rows)
        numbers = _E4M3[raw] if self.dtype == "F8_E4M3" else (raw.astype(np.uint16) << 8).view(np.float16)
        if not rows:
            return numbers.astype(np.float32)
        tall, wide = self.block
        first, last = start // tall, (start + rows - 1) // tall
        grid_width = -(-width // wide)
        scales = self.scales.numbers() if self.scales.shape in ((), (1,)) else self.scales.numbers(first, last + 1)
        scales = scales.reshape(last + 1 - first, grid_width)
        by_row = scales[np.arange(start, start + rows) // tall - first]
        with np.errstate(invalid="ignore", over="ignore"):  # who uses the numbers checks that they are finite
            return np.asarray(numbers.astype(np.float32, copy=False) * np.repeat(by_row, wide, axis=1)[:, :width])


def assemble(stored: dict[str, StoredTensor], settings: Mapping[str, Any], where: str) -> dict[str, SourceTensor]:
    """Take the FP8 weights with their scales out of `stored`. Raises CheckpointError for scales that do not fit."""
    found: dict[str, SourceTensor] = {}
    for name in [name for name, tensor in stored.items() if tensor.dtype in DTYPES]:
        weight = stored.pop(name)
        base = name.removesuffix(".weight")
        scales = [stored.pop(f"{base}.{key}") for key in _SCALES if f"{base}.{key}" in stored]
        if base == name or len(weight.shape) != 2 or not all(weight.shape) or len(scales) != 1:
            raise CheckpointError(
                f"{where}: tensor {name!r} is {weight.dtype} {list(weight.shape)} with {len(scales)} scales; "
                f"a matrix X.weight with one tensor X.{_SCALES[1]} or X.{_SCALES[0]} is needed"
            )
        scales[0].require(*PLAIN_DTYPES)
        found[name] = Fp8Tensor(weight, scales[0], _block(weight, scales[0], settings, where))
    for name in [name for name in stored if _OF_ACTIVATIONS.fullmatch(name)]:
        del stored[name]
    return found


def _block(weight: StoredTensor, scales: StoredTensor, settings: Mapping[str, Any], where: str) -> tuple[int, int]:
    """Rows and columns of a block, from the shape of the scales and, for a grid of them, the config."""
    (rows, columns), shape = weight.shape, scales.shape
    if shape in ((), (1,), (1, 1)):
        return rows, columns
    if shape in ((rows,), (rows, 1)):
        return 1, columns
    block = settings.get("weight_block_size", _structure(settings))
    if not isinstance(block, list) or len(block) != 2 or not all(type(size) is int and size > 0 for size in block):
        raise CheckpointError(f"{where}: weight_block_size is {block!r}; it must be a block's rows and columns")
    tall, wide = block
    if shape != (-(-rows // tall), -(-columns // wide)):
        raise CheckpointError(
            f"{where}: tensor {scales.name!r} has the shape {list(shape)}, which is no grid of {tall} × {wide} blocks "
            f"of {list(weight.shape)}"
        )
    return min(tall, rows), min(wide, columns)


def _structure(settings: Mapping[str, Any]) -> Any:
    """The block that compressed-tensors states for its one group of weights; None if it states none, or several."""
    groups = settings.get("config_groups")
    groups = groups.values() if isinstance(groups, dict) else ()
    weights = [
        group["weights"] for group in groups if isinstance(group, dict) and isinstance(group.get("weights"), dict)
    ]
    return weights[0].get("block_structure") if len(weights) == 1 else None
