"""The quantized payload: what a scheme's name means, and the bit layout of its tensors.

A weight W of shape [rows, columns] is stored under its canonical name with a suffix for each part. `groups` is
ceil(columns / group): a group that does not divide the width is padded on the right, and the padding stands for zero.

    W.codes    uint8   [rows, groups * group * bits / 8]
                       4 bits: element 2i in the low nibble of byte i, 2i + 1 in the high one; 8 bits: a byte each
    W.scales   float16 [rows, groups]
    W.zeros    uint8   [rows, ceil(groups / 2)]     `zp` only: a 4-bit zero point a group, even groups in the low nibble
    W.offsets  float16 [rows, groups]               `affine` only

Codes are unsigned. With q the code of an element and s, z, b those of its group, the weight is

    sym     s * (q - 8)  at 4 bits,  s * (q - 128)  at 8
    zp      s * (q - z)
    affine  s * q + b

The layout is that of ONNX Runtime's MatMulNBits operator (zero points row-padded as there), so the ONNX graph can
refer to these very bytes. Weights that are not quantized (norms, biases, or by recipe) are stored as W itself,
float16 or float32. This module knows nothing of how codes are chosen: that is `exporters/quant`.

A matrix may be cut into runs, each in a scheme of its own: consecutive rows (heads of a query, key or value matrix) or
consecutive columns (heads of an output matrix). Run i, from 0 on, is stored as a matrix called W.run<i>; its groups
begin at its own first column. The manifest says so in the place of the scheme's name:

    rows 64 int8-g32-sym, 512 int4-g32-sym       the first 64 rows, then the other 512
    columns 128 float16, 448 int4-g32-zp
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, assert_never, cast

import numpy as np
import numpy.typing as npt

from edge.errors import FormatError

Array = npt.NDArray[Any]
Kind = Literal["sym", "zp", "affine"]

SCHEMES = ("int4-g{32,64,128}-{sym,zp,affine}", "int8-g32-sym", "float16", "float32")
_NAME = re.compile(r"int4-g(32|64|128)-(sym|zp|affine)|int8-g32-sym")
_RUN = re.compile(r"([1-9][0-9]{0,9}) ([a-z0-9-]+)")
Axis = Literal["rows", "columns"]


@dataclass(frozen=True, slots=True)
class Scheme:
    """A way to store a weight: `bits` per code, columns per `group`, and how a code becomes a number."""

    bits: int
    group: int
    kind: Kind

    @property
    def name(self) -> str:
        return f"int{self.bits}-g{self.group}-{self.kind}"

    @property
    def zero(self) -> int:
        """The code that stands for zero in `sym`: the middle of the range."""
        return 1 << (self.bits - 1)

    def groups(self, columns: int) -> int:
        return -(-columns // self.group)

    def parts(self, rows: int, columns: int) -> dict[str, tuple[str, tuple[int, int]]]:
        """The tensors of a [rows, columns] weight: suffix → (safetensors dtype, shape)."""
        groups = self.groups(columns)
        parts = {
            "codes": ("U8", (rows, groups * self.group * self.bits // 8)),
            "scales": ("F16", (rows, groups)),
        }
        match self.kind:
            case "sym":
                pass
            case "zp":
                parts["zeros"] = ("U8", (rows, -(-groups // 2)))
            case "affine":
                parts["offsets"] = ("F16", (rows, groups))
            case _:
                assert_never(self.kind)
        return parts

    def size(self, rows: int, columns: int) -> int:
        """Bytes of a [rows, columns] weight."""
        width = {"U8": 1, "F16": 2}
        return sum(width[dtype] * shape[0] * shape[1] for dtype, shape in self.parts(rows, columns).values())


def parse_scheme(name: str) -> Scheme | None:
    """The scheme of that name; None for float16 and float32, which are stored as they are.

    Raises FormatError for a name that is not one of `SCHEMES`.
    """
    if name in ("float16", "float32"):
        return None
    if not _NAME.fullmatch(name):
        raise FormatError(f"unknown scheme {name!r}; known are {', '.join(SCHEMES)}")
    bits, group, kind = name.removeprefix("int").replace("g", "").split("-")
    return Scheme(int(bits), int(group), cast(Kind, kind))


@dataclass(frozen=True, slots=True)
class Run:
    """Rows or columns start…stop of a weight, stored in one scheme under a name of their own."""

    name: str
    start: int
    stop: int
    shape: tuple[int, ...]
    scheme: str


@dataclass(frozen=True, slots=True)
class Layout:
    """How a weight is stored: `runs` are (rows or columns, scheme). One run is the whole weight, whatever its size."""

    runs: tuple[tuple[int, str], ...]
    axis: Axis = "rows"

    @classmethod
    def parse(cls, text: str) -> Layout:
        """The inverse of `str`. Raises FormatError for what is neither a scheme's name nor a list of runs."""
        axis, _, listed = text.partition(" ")
        if not listed:
            parse_scheme(text)
            return cls(((0, text),))
        found = [_RUN.fullmatch(item) for item in listed.split(", ")]
        if axis not in ("rows", "columns") or len(found) < 2 or None in found:
            raise FormatError(f"{text!r} is no layout; it is a scheme's name, or such as: rows 64 float16, 64 float32")
        runs = tuple((int(item[1]), item[2]) for item in found if item)
        for _, scheme in runs:
            parse_scheme(scheme)
        return cls(runs, "rows" if axis == "rows" else "columns")

    def __str__(self) -> str:
        if len(self.runs) == 1:
            return self.runs[0][1]
        return f"{self.axis} {', '.join(f'{count} {scheme}' for count, scheme in self.runs)}"

    def split(self, name: str, shape: tuple[int, ...]) -> tuple[Run, ...]:
        """The runs of a weight. Raises FormatError where they do not fit its shape."""
        if len(self.runs) == 1:
            return (Run(name, 0, shape[0], shape, self.runs[0][1]),)
        along = 0 if self.axis == "rows" else 1
        if len(shape) != 2 or sum(count for count, _ in self.runs) != shape[along]:
            raise FormatError(f"{name} is {list(shape)}; it cannot be cut into {self}")
        runs, start = [], 0
        for index, (count, scheme) in enumerate(self.runs):
            size = (count, shape[1]) if along == 0 else (shape[0], count)
            runs.append(Run(f"{name}.run{index}", start, start + count, size, scheme))
            start += count
        return tuple(runs)


def pack_nibbles(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """4-bit codes [..., n] to bytes [..., ceil(n / 2)], the even element low; an odd tail is padded with 0."""
    if codes.shape[-1] % 2:
        codes = np.concatenate([codes, np.zeros((*codes.shape[:-1], 1), np.uint8)], axis=-1)
    return np.asarray(codes[..., 0::2] | (codes[..., 1::2] << 4))


def unpack_nibbles(packed: npt.NDArray[np.uint8], count: int) -> npt.NDArray[np.uint8]:
    """The inverse of `pack_nibbles`: the first `count` codes of each row, [..., count]."""
    codes = np.empty((*packed.shape[:-1], packed.shape[-1] * 2), np.uint8)
    codes[..., 0::2] = packed & 15
    codes[..., 1::2] = packed >> 4
    return codes[..., :count]


def unpack(scheme: Scheme, parts: Mapping[str, Array]) -> tuple[Array, Array, Array]:
    """(codes, scales, shifts) of some rows, such that weight = scale * code + shift.

    codes uint8 [rows, groups, group]; scales and shifts float32 [rows, groups, 1].
    """
    rows, groups = parts["scales"].shape
    packed = parts["codes"]
    codes = packed if scheme.bits == 8 else unpack_nibbles(packed, groups * scheme.group)
    scales = parts["scales"].astype(np.float32)
    match scheme.kind:
        case "sym":
            shifts = -scales * np.float32(scheme.zero)
        case "zp":
            shifts = -scales * unpack_nibbles(parts["zeros"], groups)
        case "affine":
            shifts = parts["offsets"].astype(np.float32)
        case _:
            assert_never(scheme.kind)
    return codes.reshape(rows, groups, scheme.group), scales[..., None], shifts[..., None]


def dequantize(scheme: Scheme, parts: Mapping[str, Array], columns: int) -> npt.NDArray[np.float32]:
    """Rows of a weight as float32 [rows, columns], the group padding dropped."""
    codes, scales, shifts = unpack(scheme, parts)
    weight = codes.astype(np.float32)
    weight *= scales
    weight += shifts
    return weight.reshape(len(weight), scales.shape[1] * scheme.group)[:, :columns]  # no -1: there may be no rows


def slice_columns(scheme: Scheme, parts: Mapping[str, Array], start: int, stop: int) -> dict[str, Array]:
    """The parts of columns start…stop. Both are multiples of the group; `stop` may be the last column instead."""
    first, last = start // scheme.group, scheme.groups(stop)
    width = scheme.group * scheme.bits // 8
    found = {name: part[:, first:last] for name, part in parts.items()}
    found["codes"] = parts["codes"][:, first * width : last * width]
    if "zeros" in parts:
        found["zeros"] = pack_nibbles(unpack_nibbles(parts["zeros"], last)[:, first:])
    return found


WIDE = Scheme(8, 32, "sym")


def holds(runs: Sequence[Run], axis: Axis) -> Scheme | None:
    """The one scheme that holds a weight of several runs exactly, `WIDE`; None where only float32 does.

    A code less its zero point fits 8 bits, and a scale of 64 or 128 columns is two or four of 32. An offset does not,
    and groups must not straddle two runs.
    """
    schemes = [parse_scheme(run.scheme) for run in runs]
    shifted = any(scheme is None or scheme.kind not in ("sym", "zp") for scheme in schemes)
    straddled = axis == "columns" and any(run.start % WIDE.group for run in runs)
    return None if shifted or straddled else WIDE


def widen(scheme: Scheme, parts: Mapping[str, Array], columns: int) -> dict[str, Array]:
    """Rows of a `sym` or `zp` weight in the scheme `WIDE`: the same numbers."""
    codes, _, _ = unpack(scheme, parts)
    rows, groups = parts["scales"].shape
    assert scheme.kind in ("sym", "zp"), scheme
    zeros = unpack_nibbles(parts["zeros"], groups)[..., None] if scheme.kind == "zp" else np.uint8(scheme.zero)
    codes = codes - zeros + np.uint8(WIDE.zero)  # modulo 256, and the result is within 0…255
    wide = WIDE.groups(columns)
    scales = parts["scales"].repeat(scheme.group // WIDE.group, axis=1)[:, :wide]
    return {"codes": codes.reshape(rows, -1)[:, : wide * WIDE.group], "scales": scales}
