"""GPTQ and AWQ folders: codes packed into 32-bit words, weight = scale * (code - zero).

    X.scales    F16 [groups, rows]          (also BF16 and F32)
    X.qzeros    I32 [groups, rows * bits / 32]
    X.qweight   GPTQ: I32 [columns * bits / 32, rows]; AWQ: I32 [columns, rows * bits / 32]
    X.g_idx     GPTQ: I32 [columns], the group of each column; absent: column // group_size

All are transposed against the weight [rows, columns]. GPTQ words hold codes in order, the first in the lowest bits;
nibble i of an AWQ word (version "gemm") holds row 0, 2, 4, 6, 1, 3, 5, 7 of its eight. GPTQ's first checkpoint format
stores a zero point minus one, where 0 wraps round to all ones; "gptq_v2" stores it as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from edge.errors import CheckpointError, InternalError, UnsupportedError
from edge.payload import Scheme, dequantize, pack_nibbles
from exporters.checkpoint import SourceTensor
from exporters.checkpoint.source import PLAIN_DTYPES, row_range
from exporters.checkpoint.stored import StoredTensor, fits_half

CARRIED_GROUPS = (32, 64, 128)
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_ZERO = 8  # the zero point that int4-gN-sym stands for


@dataclass(frozen=True, slots=True)
class Module:
    """The tensors of the module `base`."""

    base: str
    qweight: StoredTensor
    qzeros: StoredTensor
    scales: StoredTensor

    def check(self, rows: int, groups: int, words: float, where: str) -> None:
        """Raises CheckpointError unless scales are [groups, rows] and qzeros [groups, words]."""
        if self.scales.shape != (groups, rows) or self.qzeros.shape != (groups, words):
            raise CheckpointError(
                f"{where}: {self.base}: qweight {list(self.qweight.shape)}, scales {list(self.scales.shape)} and "
                f"qzeros {list(self.qzeros.shape)} do not fit together"
            )


@dataclass(frozen=True)
class PackedTensor:
    """A matrix of packed codes. `groups_of` is the group of each column where it is not column // group."""

    module: Module
    kind: Literal["GPTQ", "AWQ"]
    bits: int
    group: int
    zero_shift: int
    groups_of: npt.NDArray[np.int64] | None

    @property
    def name(self) -> str:
        return f"{self.module.base}.weight"

    @property
    def shape(self) -> tuple[int, ...]:
        packed = 32 // self.bits if self.kind == "GPTQ" else 1
        return (self.module.scales.shape[1], self.module.qweight.shape[0] * packed)

    @property
    def dtype(self) -> str:
        return f"{self.kind} {self.bits}-bit"

    @cached_property
    def scheme(self) -> Scheme | None:
        """int4-gN-sym or -zp if one holds the codes exactly; all scales and zero points are read for that, once."""
        if self._obstacle:
            return None
        return Scheme(4, self.group, "sym" if np.all(self._zeros(0, self.shape[0]) == _ZERO) else "zp")

    @property
    def note(self) -> str:
        return f"{self.kind} weights with {self._obstacle}: dequantized" if self._obstacle else ""

    @cached_property
    def _obstacle(self) -> str:
        """What keeps the codes from being carried."""
        if self.bits != 4:
            return f"{self.bits}-bit codes, which no scheme holds"
        if self.group not in CARRIED_GROUPS:
            return f"groups of {self.group}, which no scheme has"
        if self.groups_of is not None:
            return "columns in the order of activations"
        return "" if fits_half(self.module.scales.numbers()) else "scales that are no float16 numbers"

    def read(self, start: int = 0, stop: int | None = None) -> npt.NDArray[np.float32]:
        start, rows, width = row_range(self.shape, start, stop)
        stop = start + rows
        if self.scheme is not None:
            return dequantize(self.scheme, self.codes(start, stop), width)
        groups = np.arange(width) // self.group if self.groups_of is None else self.groups_of
        numbers = self._codes(start, stop).astype(np.float32)
        numbers -= self._zeros(start, stop)[:, groups]
        with np.errstate(invalid="ignore", over="ignore"):  # who uses the numbers checks that they are finite
            numbers *= self.module.scales.columns(start, stop).T[:, groups]
        return numbers

    def codes(self, start: int = 0, stop: int | None = None) -> dict[str, npt.NDArray[Any]]:
        if self.scheme is None:
            raise InternalError(f"tensor {self.name!r} is {self.dtype}: it has no codes to carry")
        start, rows, width = row_range(self.shape, start, stop)
        stop = start + rows
        zeros = self._zeros(start, stop)
        padded = np.repeat(zeros, self.group, axis=1)  # a group's padding stands for zero
        padded[:, :width] = self._codes(start, stop)
        parts: dict[str, npt.NDArray[Any]] = {
            "codes": pack_nibbles(padded),
            "scales": self.module.scales.columns(start, stop).T.astype(np.float16),
        }
        if self.scheme.kind == "zp":
            parts["zeros"] = pack_nibbles(zeros)
        return parts

    def _codes(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """[rows, columns], one code a byte."""
        if self.kind == "AWQ":
            return self._across(self.module.qweight, start, stop)
        words = self.module.qweight.columns(start, stop).T  # [rows, words]
        return _unpack(words, self.bits).reshape(stop - start, self.shape[1])

    def _zeros(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """[rows, groups]"""
        stored = self._across(self.module.qzeros, start, stop)
        return np.asarray((stored + np.uint8(self.zero_shift)) & np.uint8((1 << self.bits) - 1))

    def _across(self, tensor: StoredTensor, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Rows start…stop of the weight where a word holds those of neighbours: [rows, first axis of the tensor]."""
        packed = 32 // self.bits
        first, last = start // packed, -(-stop // packed)
        values = _unpack(tensor.columns(first, last), self.bits)
        if self.kind == "AWQ":
            values = values[..., np.argsort(_AWQ_ORDER)]
        flat = values.reshape(tensor.shape[0], (last - first) * packed)
        return np.ascontiguousarray(flat[:, start - first * packed : stop - first * packed].T)


def _unpack(words: npt.NDArray[np.uint32], bits: int) -> npt.NDArray[np.uint8]:
    """[…, words] to […, words, codes a word], the lowest bits first."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    return ((words[..., None] >> shifts) & np.uint32((1 << bits) - 1)).astype(np.uint8)


def assemble_gptq(stored: dict[str, StoredTensor], settings: Mapping[str, Any], where: str) -> dict[str, SourceTensor]:
    """Take the quantized weights out of `stored`. Raises UnsupportedError and CheckpointError as `assemble_awq`."""
    form = settings.get("checkpoint_format", settings.get("format", "gptq"))
    if form not in ("gptq", "gptq_v2") or settings.get("dynamic"):
        found = f"checkpoint format {form!r}" if form not in ("gptq", "gptq_v2") else "`dynamic` settings"
        raise UnsupportedError(f"{where}: GPTQ with {found} cannot be read; gptq and gptq_v2 without `dynamic` can")
    bits, group = _sizes(settings, (2, 4, 8), where)
    tensors: dict[str, SourceTensor] = {}
    for module in _modules(stored, where):
        rows, columns = module.qweight.shape[1], module.qweight.shape[0] * 32 // bits
        own = columns if group == -1 else group
        groups = -(-columns // own)
        module.check(rows, groups, rows * bits / 32, where)
        order = _order(stored.pop(f"{module.base}.g_idx", None), columns, own, where)
        tensors[f"{module.base}.weight"] = PackedTensor(module, "GPTQ", bits, own, int(form == "gptq"), order)
    return tensors


def assemble_awq(stored: dict[str, StoredTensor], settings: Mapping[str, Any], where: str) -> dict[str, SourceTensor]:
    """Take the quantized weights out of `stored`.

    Raises UnsupportedError for variants that cannot be read, CheckpointError for sizes that contradict each other.
    """
    version = str(settings.get("version", "gemm")).lower()
    if version != "gemm" or settings.get("zero_point", True) is not True:
        raise UnsupportedError(
            f"{where}: AWQ of version {version!r} with zero_point {settings.get('zero_point', True)!r} cannot be read; "
            "version gemm with zero points can"
        )
    bits, group = _sizes(settings, (4,), where)
    tensors: dict[str, SourceTensor] = {}
    for module in _modules(stored, where):
        columns, rows = module.qweight.shape[0], module.qweight.shape[1] * 8
        own = columns if group == -1 else group
        module.check(rows, -(-columns // own), module.qweight.shape[1], where)
        tensors[f"{module.base}.weight"] = PackedTensor(module, "AWQ", bits, own, 0, None)
    return tensors


def _sizes(settings: Mapping[str, Any], known: tuple[int, ...], where: str) -> tuple[int, int]:
    bits = settings.get("bits", settings.get("w_bit"))
    group = settings.get("group_size", settings.get("q_group_size"))
    if type(bits) is not int or bits not in known:
        raise UnsupportedError(f"{where}: {bits!r} bits cannot be read; {', '.join(map(str, known))} can")
    if type(group) is not int or not (group == -1 or 0 < group < 2**31):
        raise CheckpointError(f"{where}: group_size is {group!r}; it must be a number of columns, or -1 for all")
    return bits, group


def _modules(stored: dict[str, StoredTensor], where: str) -> list[Module]:
    """Every module, taken out of `stored`."""
    modules = []
    for base in [name.removesuffix(".qweight") for name in stored if name.endswith(".qweight")]:
        missing = [key for key in ("qzeros", "scales") if f"{base}.{key}" not in stored]
        if missing:
            raise CheckpointError(f"{where}: {base}.qweight is there but no {base}.{missing[0]}")
        module = Module(base, *(stored.pop(f"{base}.{key}") for key in ("qweight", "qzeros", "scales")))
        if any(
            len(tensor.shape) != 2 or not all(tensor.shape) for tensor in (module.qweight, module.qzeros, module.scales)
        ):
            raise CheckpointError(f"{where}: {base}: qweight, qzeros and scales must be matrices")
        module.qweight.require("I32")
        module.qzeros.require("I32")
        module.scales.require(*PLAIN_DTYPES)
        modules.append(module)
    return modules


def _order(stored: StoredTensor | None, columns: int, group: int, where: str) -> npt.NDArray[np.int64] | None:
    """The group of each column; None where it is the usual one."""
    if stored is None:
        return None
    stored.require("I32")
    if stored.shape != (columns,):
        raise CheckpointError(f"{where}: {stored.name} has the shape {list(stored.shape)} for {columns} columns")
    order = stored.bits().astype(np.int64)
    usual = np.arange(columns) // group
    if order.max() > usual[-1]:
        raise CheckpointError(f"{where}: {stored.name} names group {order.max()} of {usual[-1] + 1}")
    return None if np.array_equal(order, usual) else order
