"""How a matrix of the payload is written in MIL: value = scale · (data − offset), or numbers as they are.

`constexpr_blockwise_shift_scale` wants scales above 0, so a group with a negative scale has its codes mirrored (q
becomes 15 − q or 255 − q, and the offset moves along), and a group with the scale 0 has codes at its offset and the
scale 1.

    sym             int4 or int8 data, no offset; with a negative scale anywhere as zp
    zp              uint4 or uint8 data, offset of the same type
    affine          uint4 data; s·q + b = s·(q − z) with z = −b / s rounded to float16

All but affine are exact. affine errs by at most |b| / 2048 of a weight: half a unit in the last place of z times s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, assert_never

import numpy as np
import numpy.typing as npt

from edge import payload
from edge.payload import Axis, Run, Scheme
from edge.weights import Weights
from exporters.emit.coreml.blobs import Blob

_BLOCK = 1 << 22  # numbers that are read at a time
_LARGEST = 65504.0
_BESIDE_CODES = ("scales", "offsets", "zeros")
Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Coded:
    """A quantized matrix or a stack of them: data [..., rows, padded columns], scale and offset [..., rows, groups]."""

    data: Blob
    scale: Blob
    offset: Blob | None


class Matrices:
    """Describes the payload's matrices as blobs; nothing but scales is read until a blob's pieces are."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._described: dict[tuple[str, bool], Coded | Blob] = {}

    def runs(self, name: str) -> tuple[Run, ...]:
        """What a weight is stored in."""
        return self._weights.runs[name]

    def axis(self, name: str) -> Axis:
        """Along what a weight is cut into runs."""
        return self._weights.axes[name]

    def describe(self, name: str, shape: tuple[int, ...], *, wide: bool) -> Coded | Blob:
        """A weight or one run of it, of a shape [..., rows, columns]. `wide`: as float32, not float16."""
        if (name, wide) not in self._described:
            self._described[name, wide] = self._describe(name, shape, wide=wide)
        return self._described[name, wide]

    def _describe(self, name: str, shape: tuple[int, ...], *, wide: bool) -> Coded | Blob:
        scheme = self._weights.schemes[name]
        if scheme is None:
            return self._plain(name, shape, wide=wide or self._weights.formats[name] == "float32")
        groups = scheme.groups(shape[-1])
        scaled = (*shape[:-1], groups)
        signed = scheme.kind == "sym" and not any(
            (parts["scales"] < 0).any() for parts in self._parts(name, shape, "scales")
        )
        data = f"{'int' if signed else 'uint'}{scheme.bits}"
        offset = None if signed else "float16" if scheme.kind == "affine" else data
        padded = (*shape[:-1], groups * scheme.group)
        return Coded(
            Blob(data, padded, lambda: self._code_pieces(name, shape, data)),
            Blob("float32" if wide else "float16", scaled, lambda: self._scale_pieces(name, shape, wide=wide)),
            None if offset is None else Blob(offset, scaled, lambda: self._offset_pieces(name, shape, offset)),
        )

    def vector(self, name: str, offset: float) -> Blob:
        """A vector plus a number, float32."""
        shape = self._weights.shapes[name]
        return Blob("float32", shape, lambda: iter([(self._weights.read(name) + np.float32(offset)).tobytes()]))

    def _plain(self, name: str, shape: tuple[int, ...], *, wide: bool) -> Blob:
        dtype = np.float32 if wide else np.float16

        def pieces() -> Iterator[bytes]:
            for start, stop in self._blocks(name, shape):
                yield self._weights.tensor(name, start, stop).astype(dtype).tobytes()

        return Blob("float32" if wide else "float16", shape, pieces)

    def _code_pieces(self, name: str, shape: tuple[int, ...], dtype: str) -> Iterator[bytes]:
        scheme = self._scheme(name)
        # Two's complement is the unsigned code with its top bit flipped.
        flipped = {"int4": np.uint8(0x88), "int8": np.uint8(0x80)}.get(dtype, np.uint8(0))
        for parts in self._parts(name, shape):
            if dtype.startswith("int") and parts["scales"].all():
                yield (parts["codes"] ^ flipped).tobytes()
                continue
            codes = normal_codes(scheme, parts)
            packed = codes if scheme.bits == 8 else payload.pack_nibbles(codes.reshape(1, -1))
            yield (packed ^ flipped).tobytes()

    def _scale_pieces(self, name: str, shape: tuple[int, ...], *, wide: bool) -> Iterator[bytes]:
        scheme = self._scheme(name)
        for parts in self._parts(name, shape, *_BESIDE_CODES):
            yield normal_scales(scheme, parts)[0].astype(np.float32 if wide else np.float16).tobytes()

    def _offset_pieces(self, name: str, shape: tuple[int, ...], dtype: str) -> Iterator[bytes]:
        scheme = self._scheme(name)
        left = np.zeros((1, 0), np.uint8)  # an odd nibble of the block before
        for parts in self._parts(name, shape, *_BESIDE_CODES):
            offsets = normal_scales(scheme, parts)[1]
            if dtype != "uint4":
                yield offsets.astype(np.float16 if dtype == "float16" else np.uint8).tobytes()
                continue
            nibbles = np.concatenate([left, offsets.reshape(1, -1)], axis=1)
            even = nibbles.shape[1] // 2 * 2
            yield payload.pack_nibbles(nibbles[:, :even]).tobytes()
            left = nibbles[:, even:]
        yield payload.pack_nibbles(left).tobytes()

    def _scheme(self, name: str) -> Scheme:
        scheme = self._weights.schemes[name]
        assert scheme is not None
        return scheme

    def _parts(self, name: str, shape: tuple[int, ...], *wanted: str) -> Iterator[dict[str, Array]]:
        """The parts of each block of rows, or those that are wanted of them."""
        known = self._scheme(name).parts(1, 1)
        whole = not wanted or len(self._weights.runs.get(name, ())) > 1  # a stack in runs is read as if it had one
        for start, stop in self._blocks(name, shape):
            if whole:
                yield self._weights.parts(name, start, stop)
            else:
                yield {part: self._weights.tensor(f"{name}.{part}", start, stop) for part in wanted if part in known}

    def _blocks(self, name: str, shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
        rows = self._weights.shapes[name][0]
        step = max(1, _BLOCK // shape[-1])
        return ((start, min(start + step, rows)) for start in range(0, rows, step))


def normal_scales(scheme: Scheme, parts: Mapping[str, Array]) -> tuple[Array, Array, Array]:
    """Scales above 0 and offsets [rows, groups] of some rows, and which groups have one number for all their codes."""
    scales, top = parts["scales"], 2**scheme.bits - 1
    mirrored, alone = scales < 0, scales == 0
    sizes = np.abs(scales)
    match scheme.kind:
        case "affine":
            shifts = parts["offsets"].astype(np.float32)
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                offsets = np.where(mirrored, np.float32(top), np.float32(0)) - shifts / sizes.astype(np.float32)
                alone = ~(np.abs(offsets) <= _LARGEST)  # what codes add is less than the rounding of the offset
            offsets = np.where(alone, -shifts, offsets)
        case "sym" | "zp":
            zeros = np.full(scales.shape, scheme.zero, np.uint8)
            if scheme.kind == "zp":
                zeros = payload.unpack_nibbles(parts["zeros"], scales.shape[1])
            offsets = np.where(mirrored, np.uint8(top) - zeros, zeros)
        case _:
            assert_never(scheme.kind)
    return np.where(alone, np.float16(1), sizes), offsets, alone


def normal_codes(scheme: Scheme, parts: Mapping[str, Array]) -> npt.NDArray[np.uint8]:
    """Codes [rows, groups, group] for the scales and offsets of `normal_scales`."""
    codes, _, _ = payload.unpack(scheme, parts)
    _, offsets, alone = normal_scales(scheme, parts)
    mirrored, top = parts["scales"] < 0, np.uint8(2**scheme.bits - 1)
    codes = np.where(mirrored[..., None], top - codes, codes)
    empty = np.zeros(alone.shape, np.uint8) if scheme.kind == "affine" else offsets
    return np.asarray(np.where(alone[..., None], empty[..., None], codes))
