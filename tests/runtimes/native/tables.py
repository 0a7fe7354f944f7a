"""Programs made by hand, as the tables that the engine takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

SLOTS = 16_384
Matrix = tuple[str, int, int, list[int]]  # format, group, columns, rows of each weight


def tables(
    steps: Sequence[dict[str, Any]], buffers: Sequence[tuple[int, str]], matrices: Sequence[Matrix], *,
    layers: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:  # fmt: skip
    """Buffers are (width, words): "wanted", "codes", both or neither. Layers share a pool of SLOTS slots."""
    return {
        "instructions": list(steps),
        "buffers": [
            {"width": width, "codes": "codes" in words, "wanted": "wanted" in words} for width, words in buffers
        ],
        "matrices": [
            {"format": name, "group": group, "columns": columns, "rows": rows, "interleaved": False}
            for name, group, columns, rows in matrices
        ],
        "ropes": [],
        "rings": [{"slots": SLOTS, "window": SLOTS}] if layers else [],
        "layers": list(layers),
    }  # fmt: skip


def engine_of(
    steps: Sequence[dict[str, Any]], buffers: Sequence[tuple[int, str]], matrices: Sequence[Matrix], *,
    kernels: str = "", threads: int = 1, layers: Sequence[dict[str, Any]] = (),
) -> Any:  # fmt: skip
    from runtimes.native import _native

    return _native.Engine(tables(steps, buffers, matrices, layers=layers), [], kernels, threads)


def pack(engine: Any, matrix: int, part: int, codes: npt.NDArray[Any], *others: npt.NDArray[Any]) -> None:
    """All rows of a weight, from row 0 on."""
    found = [array.view(np.uint8).reshape(len(codes), -1) for array in (np.ascontiguousarray(codes), *others)]
    engine.pack(matrix, part, 0, *found, *[np.empty((len(codes), 0), np.uint8)] * (3 - len(found)))
