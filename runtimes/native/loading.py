"""Hands the weights of a bundle to the C++ engine, which packs them for its kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from edge.cores import share_out
from edge.lifecycle import compiled
from edge.weights import Weights
from runtimes.native.program import Matrix, Program

if TYPE_CHECKING:
    from runtimes.native._native import Engine

_BYTES_AT_ONCE = 1 << 21  # of a weight, which each thread has in memory twice
_PANEL = 32  # rows that the engine keeps together


def load(engine: Engine, program: Program, weights: Weights, threads: int) -> None:
    """Pack every matrix, some rows at a time, so that no weight is in memory twice."""
    pieces = [
        (index, part, start, min(start + step, rows))
        for index, matrix in enumerate(program.matrices)
        for part, (weight, _, rows) in enumerate(matrix.parts)
        for step in [_rows_at_once(weight.stored[0], weights.size(weight.name))]
        for start in range(0, rows, step)
    ]

    def pack(piece: tuple[int, int, int, int]) -> None:
        index, part, start, stop = piece
        matrix = program.matrices[index]
        weight, first, _ = matrix.parts[part]
        rows = _rows(matrix, weights, weight.name, first + start, first + stop)
        with compiled:
            engine.pack(index, part, start, *rows)

    share_out(pack, pieces, threads)


def _rows_at_once(rows: int, size: int) -> int:
    """Whole panels, so that no two threads write to the same ones."""
    return max(1, _BYTES_AT_ONCE * rows // size // _PANEL) * _PANEL


def _rows(matrix: Matrix, weights: Weights, name: str, start: int, stop: int) -> list[npt.NDArray[np.uint8]]:
    """Codes, scales and zero points or offsets of some rows, as bytes."""
    if matrix.scheme is None:
        found = [weights.tensor(name, start, stop)]
    else:
        parts = weights.parts(name, start, stop)
        found = [parts[part] for part in ("codes", "scales", "zeros", "offsets") if part in parts]
    arrays = [array.view(np.uint8).reshape(stop - start, -1) for array in found]
    return arrays + [np.empty((stop - start, 0), np.uint8)] * (3 - len(arrays))
