"""Folders quantized by MLX in its affine mode (mlx.core.quantize): weight = scale * code + bias.

    X.weight    U32 [rows, columns * bits / 32]     the codes of a row as one little-endian stream of bits
    X.scales    F16, BF16 or F32 [rows, columns / group_size]
    X.biases    likewise

The config's `quantization` gives `group_size` and `bits`, and may give others for single modules by name. At four bits
the stream is the payload's own order of nibbles, so the bytes move as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.errors import CheckpointError, InternalError, UnsupportedError
from edge.payload import Scheme, unpack_nibbles
from exporters.checkpoint import SourceTensor
from exporters.checkpoint.source import PLAIN_DTYPES, row_range
from exporters.checkpoint.stored import StoredTensor, fits_half

BITS = (2, 3, 4, 5, 6, 8)
GROUPS = (32, 64, 128)
_CHECKED_ROWS = 4096  # rows of scales that are looked at in one go


@dataclass(frozen=True)
class MlxTensor:
    """A matrix of affine codes."""

    weight: StoredTensor
    scales: StoredTensor
    biases: StoredTensor
    bits: int
    group: int

    @property
    def name(self) -> str:
        return self.weight.name

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.weight.shape[0], self.scales.shape[1] * self.group)

    @property
    def dtype(self) -> str:
        return f"MLX {self.bits}-bit"

    @cached_property
    def scheme(self) -> Scheme | None:
        """int4-gN-affine if every scale and bias is a float16; all of them are read for that, once."""
        if self.bits != 4:
            return None
        rows = self.shape[0]
        for start in range(0, rows, _CHECKED_ROWS):
            stop = min(start + _CHECKED_ROWS, rows)
            if not all(fits_half(part.numbers(start, stop)) for part in (self.scales, self.biases)):
                return None
        return Scheme(4, self.group, "affine")

    @property
    def note(self) -> str:
        if self.bits != 4:
            return f"no scheme holds MLX's {self.bits}-bit affine codes: dequantized"
        return "" if self.scheme else "MLX scales or biases that are no float16 numbers: dequantized"

    def read(self, start: int = 0, stop: int | None = None) -> npt.NDArray[np.float32]:
        start, rows, width = row_range(self.shape, start, stop)
        stop = start + rows
        numbers = self._codes(start, stop).astype(np.float32).reshape(rows, width // self.group, self.group)
        with np.errstate(invalid="ignore", over="ignore"):  # who uses the numbers checks that they are finite
            numbers *= self.scales.numbers(start, stop)[..., None]
            numbers += self.biases.numbers(start, stop)[..., None]
        return numbers.reshape(rows, width)

    def codes(self, start: int = 0, stop: int | None = None) -> dict[str, npt.NDArray[Any]]:
        if self.scheme is None:
            raise InternalError(f"tensor {self.name!r} is {self.dtype}: it has no codes to carry")
        start, rows, _ = row_range(self.shape, start, stop)
        stop = start + rows
        return {
            "codes": self.weight.bits(start, stop).view(np.uint8),
            "scales": self.scales.numbers(start, stop).astype(np.float16),
            "offsets": self.biases.numbers(start, stop).astype(np.float16),
        }

    def _codes(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """[rows, columns], one code a byte."""
        packed = self.weight.bits(start, stop).view(np.uint8)
        if self.bits == 8:
            return packed
        if self.bits == 4:
            return unpack_nibbles(packed, self.shape[1])
        stream = np.unpackbits(packed, axis=1, bitorder="little").reshape(stop - start, self.shape[1], self.bits)
        return np.asarray(np.packbits(stream, axis=2, bitorder="little")[..., 0])


def assemble(stored: dict[str, StoredTensor], settings: Mapping[str, Any], where: str) -> dict[str, SourceTensor]:
    """Take the quantized weights with their scales and biases out of `stored`.

    Raises UnsupportedError for another mode, CheckpointError for sizes that contradict each other.
    """
    found: dict[str, SourceTensor] = {}
    for name in [name for name, tensor in stored.items() if tensor.dtype == "U32" and name.endswith(".weight")]:
        base = name.removesuffix(".weight")
        group, bits = _sizes(settings, base, where)
        missing = [key for key in ("scales", "biases") if f"{base}.{key}" not in stored]
        if missing:
            raise CheckpointError(f"{where}: tensor {name!r} is quantized but there is no {base}.{missing[0]}")
        weight, scales, biases = (stored.pop(f"{base}.{key}") for key in ("weight", "scales", "biases"))
        shape = scales.shape
        if (
            len(shape) != 2
            or not all(shape)
            or biases.shape != shape
            or weight.shape != (shape[0], shape[1] * group * bits // 32)
        ):
            raise CheckpointError(
                f"{where}: tensor {name!r} has the shape {list(weight.shape)}, its scales {list(shape)} and its biases "
                f"{list(biases.shape)}, which do not fit {bits} bits in groups of {group}"
            )
        scales.require(*PLAIN_DTYPES)
        biases.require(*PLAIN_DTYPES)
        found[name] = MlxTensor(weight, scales, biases, bits, group)
    return found


def _sizes(settings: Mapping[str, Any], base: str, where: str) -> tuple[int, int]:
    """The group size and bits of a module."""
    own = settings.get(base)
    merged = {**settings, **own} if isinstance(own, dict) else settings
    mode = merged.get("mode", "affine")
    if mode != "affine":
        raise UnsupportedError(
            f"{where}: {base} is quantized in MLX's mode {mode!r}; only affine can be read: export from the model as "
            "it was before it was quantized"
        )
    group, bits = merged.get("group_size"), merged.get("bits")
    if type(group) is not int or type(bits) is not int or group not in GROUPS or bits not in BITS:
        raise CheckpointError(
            f"{where}: {base} has {bits!r} bits in groups of {group!r}; bits are {', '.join(map(str, BITS))} and "
            f"groups {', '.join(map(str, GROUPS))}"
        )
    return group, bits
