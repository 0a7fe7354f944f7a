"""What src/module.cpp offers. Everything raises ValueError for what does not exist or fit."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

_Ints = npt.NDArray[np.int32]
_Longs = npt.NDArray[np.int64]
_Reals = npt.NDArray[np.float32]
_Kept = _Reals | npt.NDArray[np.uint16]  # floats, or the halves of a layer of float16
_Bytes = npt.NDArray[np.uint8]

def find_kernels(name: str) -> str:
    """The kernel set of that name, the fastest for "", or "" where it is unknown or not usable."""

def schema() -> str:
    """The schema of programs that it was built with, a line for each record."""

def uniform(seed: int, draw: int) -> float:
    """The number in [0, 1) of a draw."""

class Sampler:
    """`rule` has the fields of SamplingRule in src/sampling.hpp."""

    def __init__(self, rule: Mapping[str, Any], kernels: str) -> None: ...
    @property
    def draws(self) -> int: ...
    def prompt(self, tokens: _Ints) -> None: ...
    def accept(self, token: int) -> None: ...
    def truncate(self, count: int) -> None: ...
    def sample(self, logits: _Reals, allowed: _Bytes | None) -> int: ...

class Engine:
    def __init__(
        self, tables: Mapping[str, Any], vectors: Sequence[_Reals], kernels: str, threads: int, kv_file: int = -1
    ) -> None: ...
    def pack(self, matrix: int, run: int, first: int, codes: _Bytes, scales: _Bytes, extra: _Bytes) -> None: ...
    def forward(
        self,
        tokens: _Ints,
        segments: _Longs,
        runs: Sequence[Sequence[_Longs]],
        angles: Sequence[tuple[_Reals, _Reals]],
        wanted: _Longs,
        logits: _Reals,
        attention: Sequence[tuple[int, int, _Reals]] = (),
    ) -> None: ...
    def read(self, buffer: int, out: _Reals) -> None: ...
    def copy_rows(self, ring: int, source: int, target: int, count: int) -> None: ...
    def rotate_rows(
        self, layer: int, source: int, target: int, count: int, cos: Sequence[float], sin: Sequence[float]
    ) -> None: ...
    def read_rows(self, layer: int, slots: Sequence[int], keys: _Kept, values: _Kept) -> None: ...
    def write_rows(self, layer: int, slots: Sequence[int], keys: _Kept, values: _Kept) -> None: ...
    @property
    def weight_bytes(self) -> int: ...
    @property
    def kv_bytes(self) -> int: ...
