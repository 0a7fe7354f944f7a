"""Hands the weights of a bundle to the C++ engine, which packs them for its kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from edge.cores import share_out
from edge.lifecycle import compiled
from edge.weights import Weights
from runtimes.native.matrix import Run
from runtimes.native.program import Program

if TYPE_CHECKING:
    from runtimes.native._native import Engine

_BYTES_AT_ONCE = 1 << 21  # of a weight, which each thread has in memory twice
_PANEL = 32  # rows that the engine keeps together


def load(engine: Engine, program: Program, weights: Weights, threads: int) -> None:
    """Pack every run of every matrix, some rows at a time, so that no weight is in memory twice."""
    pieces = [
        (index, number, run, start, stop)
        for index, matrix in enumerate(program.matrices)
        for number, (_, run) in enumerate(matrix.runs)
        for start, stop in _pieces(run, weights.shapes[run.name][0], weights.size(run.name))
    ]

    def pack(piece: tuple[int, int, Run, int, int]) -> None:
        index, number, run, start, stop = piece
        rows = _rows(weights, run.name, run.first + start, run.first + stop)
        with compiled:
            engine.pack(index, number, start, *rows)

    share_out(pack, pieces, threads)


def _pieces(run: Run, stored: int, size: int) -> Iterator[tuple[int, int]]:
    """Ranges of a run's rows. `stored` rows take `size` bytes; no two threads write to the same panel."""
    step = max(1, _BYTES_AT_ONCE * stored // size // _PANEL) * _PANEL
    start = 0
    while start < run.rows:
        stop = min(start + step - (run.row + start) % _PANEL, run.rows)
        yield start, stop
        start = stop


def _rows(weights: Weights, name: str, start: int, stop: int) -> list[npt.NDArray[np.uint8]]:
    """Codes, scales and zero points or offsets of some rows, as bytes."""
    if weights.schemes[name] is None:
        found = [weights.tensor(name, start, stop)]
    else:
        parts = weights.parts(name, start, stop)
        found = [parts[part] for part in ("codes", "scales", "zeros", "offsets") if part in parts]
    arrays = [array.view(np.uint8).reshape(stop - start, -1) for array in found]
    return arrays + [np.empty((stop - start, 0), np.uint8)] * (3 - len(arrays))
