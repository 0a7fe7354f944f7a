"""Programs made by hand, as the tables that the engine takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

SLOTS = 16_384
Matrix = tuple[str, int, int, list[int]]  # format, group, columns, rows of each weight
Cut = tuple[int, int, list[dict[str, Any]]]  # rows, columns, runs of one weight


def whole(name: str, group: int, columns: int, rows: Sequence[int]) -> list[dict[str, Any]]:
    """The runs of weights that are of one format."""
    return [
        {"weight": index, "row": 0, "rows": count, "column": 0, "columns": columns, "format": name, "group": group}
        for index, count in enumerate(rows)
    ]


def cut(rows: int, columns: int, axis: str, *runs: tuple[str, int, int]) -> Cut:
    """A weight in runs of (format, group, size): so many rows or columns each."""
    found: list[dict[str, Any]] = []
    start = 0
    for name, group, size in runs:
        place = (start, size, 0, columns) if axis == "rows" else (0, rows, start, size)
        fields = dict(zip(("row", "rows", "column", "columns"), place, strict=True))
        found.append({"weight": 0, **fields, "format": name, "group": group})
        start += size
    return rows, columns, found


def _record(matrix: Matrix | Cut) -> dict[str, Any]:
    if len(matrix) == 3:
        return {"columns": matrix[1], "rows": [matrix[0]], "runs": matrix[2]}
    name, group, columns, rows = matrix
    return {"columns": columns, "rows": rows, "runs": whole(name, group, columns, rows)}


def tables(
    steps: Sequence[dict[str, Any]], buffers: Sequence[tuple[int, str]], matrices: Sequence[Matrix | Cut], *,
    layers: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:  # fmt: skip
    """Buffers are (width, words): "wanted", "codes", both or neither. Layers share a pool of SLOTS slots."""
    return {
        "instructions": list(steps),
        "buffers": [
            {"width": width, "codes": "codes" in words, "wanted": "wanted" in words} for width, words in buffers
        ],
        "matrices": [_record(matrix) for matrix in matrices],
        "ropes": [],
        "rings": [{"slots": SLOTS, "window": SLOTS}] if layers else [],
        "layers": list(layers),
    }  # fmt: skip


def engine_of(
    steps: Sequence[dict[str, Any]], buffers: Sequence[tuple[int, str]], matrices: Sequence[Matrix | Cut], *,
    kernels: str = "", threads: int = 1, layers: Sequence[dict[str, Any]] = (),
) -> Any:  # fmt: skip
    from runtimes.native import _native

    return _native.Engine(tables(steps, buffers, matrices, layers=layers), [], kernels, threads)


def pack(engine: Any, matrix: int, run: int, codes: npt.NDArray[Any], *others: npt.NDArray[Any]) -> None:
    """All rows of a run, from its first on."""
    found = [array.view(np.uint8).reshape(len(codes), -1) for array in (np.ascontiguousarray(codes), *others)]
    engine.pack(matrix, run, 0, *found, *[np.empty((len(codes), 0), np.uint8)] * (3 - len(found)))
