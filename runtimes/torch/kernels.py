"""The kernels of PyTorch that multiply with int4 codes as they are, and which of them is taken where.

They compute scale · (code - 8) + zero with a scale and a zero for each group of 32, 64 or 128 columns, in the dtype of
their input. Every scheme of the payload is one of these, int8 too: a code c is 16 · (c >> 4) + (c & 15), so such a
matrix is one of twice as many columns, with the input beside itself.

A kernel that needs bfloat16 scales rounds them to 8 bits; `TOLERANCE` is what its products may differ from those with
dequantized weights, in units of their root mean square. Whoever opens a model tries each kernel on one matrix of each
scheme before it is used; where it fails, that scheme is dequantized into the workspace instead, and `doctor` and
`--stats` say so (see `runtimes.torch.loading`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from edge.payload import Scheme
from runtimes.torch.codes import Codes, Stored, Workspace
from runtimes.torch.products import times

TOLERANCE = 0.01
_TILES = (8, 4, 2)  # of 16 columns, that the tensor core's layout may put side by side


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel, and how to bring codes into its layout.

    multiple    of its rows; others are added, and left out of the result
    most_rows   rows of the input up to which it is faster than dequantizing first; None: always
    pack        codes [rows, columns], a byte each, → its own layout, which for some rows is a part of that for all
    unpack      the inverse for some rows of the layout; None where codes need not come back
    multiply    (x, packed, group, scales and zeros) → x · Wᵀ
    """

    name: str
    devices: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...]
    multiple: int
    most_rows: int | None
    pack: Callable[[Tensor], Tensor]
    unpack: Callable[[Tensor], Tensor] | None
    multiply: Callable[[Tensor, Tensor, int, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Int4:
    """A matrix in a kernel's layout: `packed`, and `affine` [groups, rows, 2], the scale and the zero of each group."""

    kernel: Kernel
    packed: Tensor
    affine: Tensor
    group: int
    rows: int
    halves: int  # 2 for int8 codes, whose halves lie side by side
    columns: int
    work: Workspace

    @property
    def way(self) -> str:
        return self.kernel.name

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes + self.affine.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        kernel = self.kernel
        if kernel.most_rows is not None and len(x) > kernel.most_rows:
            return self._dequantized(x)
        width = self.affine.shape[0] // self.halves * self.group
        x = x.to(self.affine.dtype)
        x = functional.pad(x, (0, width - self.columns)).repeat(1, self.halves)
        return kernel.multiply(x, self.packed, self.group, self.affine)[:, : self.rows].float()

    def _dequantized(self, x: Tensor) -> Tensor:
        """For many rows: the codes taken out of the layout, some rows at a time."""
        kernel = self.kernel
        assert kernel.unpack is not None
        tiles = self.affine.shape[1] // len(self.packed)  # rows of the matrix in one of the layout
        width = self.affine.shape[0] * self.group
        step = max(1, self.work.numbers // width // tiles)
        out = torch.empty(len(x), self.affine.shape[1], dtype=torch.float32, device=x.device)
        for first in range(0, len(self.packed), step):
            codes = kernel.unpack(self.packed[first : first + step])
            rows = slice(first * tiles, first * tiles + len(codes))
            affine = self.affine[:, rows].transpose(0, 1)[..., None]  # [rows, groups, 2, 1]
            grouped = codes.view(len(codes), -1, self.group).to(self.affine.dtype) - 8
            numbers = (grouped * affine[:, :, 0] + affine[:, :, 1]).view(len(codes), self.halves, -1)
            numbers = numbers.sum(dim=1) if self.halves > 1 else numbers[:, 0]
            out[:, rows] = times(x, numbers[:, : self.columns])
        return out[:, : self.rows]


def _pack_for_cpu(codes: Tensor) -> Tensor:
    found: Tensor = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.int(), 1)
    return found


def _pack_tiles(codes: Tensor) -> Tensor:
    high, low = codes[:, ::2], codes[:, 1::2]
    found: Tensor = torch.ops.aten._convert_weight_to_int4pack((high << 4 | low).contiguous(), _tiles(codes.shape[1]))
    return found


def _tiles(columns: int) -> int:
    return next(count for count in _TILES if columns % (16 * count) == 0)


def unpack_tiles(packed: Tensor) -> Tensor:
    """The codes in the layout of CUDA's tensor cores, int32 [rows / 8, columns / 16 / tiles, 32, tiles / 2].

    Lane 4r + c of a tile of 32 columns holds eight codes of row r: from the low bits on those of the even columns
    2c, 2c + 8, 2c + 16, 2c + 24, then those of the odd ones beside them.
    """
    tiles, outer, _, inner = packed.shape
    shifts = torch.arange(0, 32, 4, device=packed.device, dtype=torch.int32)
    codes = (packed[..., None] >> shifts) & 15
    codes = codes.to(torch.uint8).view(tiles, outer, 8, 4, inner, 2, 4)  # row, c, pair of tiles, odd, 8 columns
    return codes.permute(0, 2, 1, 4, 6, 3, 5).reshape(tiles * 8, outer * inner * 32)


def _pack_for_metal(codes: Tensor) -> Tensor:
    high, low = codes[:, ::2], codes[:, 1::2]
    found: Tensor = torch.ops.aten._convert_weight_to_int4pack((high << 4 | low).contiguous(), 2)
    return found


def unpack_bytes(packed: Tensor) -> Tensor:
    """The codes in the layout of Metal's kernel: two a byte along the rows, the even column low, whatever its shape."""
    rows = 8 * len(packed)
    found = packed.contiguous().view(torch.uint8).view(rows, -1, 1)
    return torch.cat([found & 15, found >> 4], dim=2).view(rows, -1)


def _multiply(x: Tensor, packed: Tensor, group: int, affine: Tensor) -> Tensor:
    found: Tensor = torch.ops.aten._weight_int4pack_mm(x, packed, group, affine)
    return found


def _multiply_for_cpu(x: Tensor, packed: Tensor, group: int, affine: Tensor) -> Tensor:
    found: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x, packed, group, affine)
    return found


# The first that fits the device and the dtype is taken. In float32 and float16 the CPU's takes a number at a time.
KERNELS: tuple[Kernel, ...] = (
    Kernel("int4 (cpu)", ("cpu",), (torch.bfloat16,), 64, None, _pack_for_cpu, None, _multiply_for_cpu),
    Kernel("int4 (cuda)", ("cuda",), (torch.bfloat16,), 8, 64, _pack_tiles, unpack_tiles, _multiply),
    Kernel(
        "int4 (mps)", ("mps",), (torch.bfloat16, torch.float16, torch.float32), 8, 16, _pack_for_metal, unpack_bytes,
        _multiply,
    ),
)  # fmt: skip


def find(device: str, dtype: torch.dtype) -> Kernel | None:
    return next((kernel for kernel in KERNELS if device in kernel.devices and dtype in kernel.dtypes), None)


def pack(
    kernel: Kernel, scheme: Scheme, shape: tuple[int, ...], parts: Iterable[Stored], dtype: torch.dtype, work: Workspace
) -> Int4:  # fmt: skip
    """A matrix [rows, columns] in a kernel's layout. Its codes come in parts of a multiple of rows that suits it."""
    (rows, columns), halves = shape, scheme.bits // 4
    padded = rows + -rows % kernel.multiple
    packed: Tensor | None = None
    affine = torch.empty(halves * scheme.groups(columns), padded, 2, dtype=dtype, device=work.device)
    start = 0
    for part in parts:
        assert isinstance(part, Codes)
        missing = -part.rows % kernel.multiple
        codes = part.unpacked(work)
        if halves == 2:
            codes = torch.cat([codes >> 4, codes & 15], dim=1)
        made = kernel.pack(functional.pad(codes, (0, 0, 0, missing), value=8))
        stop = start + part.rows + missing
        if packed is None:
            packed = made.new_empty(len(made) * padded // stop, *made.shape[1:])
        tall = padded // len(packed)  # rows of the matrix in one of the layout
        packed[start // tall : stop // tall] = made
        affine[:, start:stop] = functional.pad(_affine(part), (0, 0, 0, missing))
        start = stop
    assert packed is not None
    return Int4(kernel, packed, affine, scheme.group, rows, halves, columns, work)


def _affine(codes: Codes) -> Tensor:
    """float32 [groups, rows, 2]: weight = scale · (code - 8) + zero; of int8 codes first for the high halves."""
    scales = codes.scales.float()
    offsets = codes.offsets(scales)
    if codes.scheme.bits == 4:
        pairs = [(scales, offsets + 8 * scales)]
    else:
        # The middle of the codes, 128, is in the high halves: rounded numbers of both halves then stay small.
        pairs = [(16 * scales, torch.zeros_like(scales)), (scales, offsets + 136 * scales)]
    found = torch.cat([torch.stack(pair, dim=2) for pair in pairs], dim=1)
    return found.transpose(0, 1).contiguous()


def error(product: Int4, parts: Iterable[Stored]) -> float:
    """How far a product with one row is from that with dequantized weights, in units of its root mean square."""
    work = product.work
    x = torch.randn(1, product.columns, generator=torch.Generator().manual_seed(0)).to(work.device)
    expected = torch.cat([x @ rows.numbers(work).T for rows in parts], dim=1)
    difference = product(x) - expected
    return float(difference.norm() / expected.norm().clamp_min(1e-30))
