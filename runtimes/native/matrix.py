"""Matrices as the engine takes them: weights over the same columns, each in runs of rows or columns of one format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from edge import payload
from edge.ops import Weight

BLOCK = 32  # columns that share an activation scale
PADDED = 128  # a row of codes is padded to a multiple: groups of any size end with it


@dataclass(frozen=True, slots=True)
class Run:
    """Rows and columns of one of a matrix's weights, by their first and how many.

    `name` is the payload's for the run that they belong to, in which they begin with row `first`.
    """

    name: str
    first: int
    row: int
    rows: int
    column: int
    columns: int
    scheme: str

    def record(self, weight: int) -> dict[str, Any]:
        """The fields of a run in program.def."""
        scheme = payload.parse_scheme(self.scheme)
        return {
            "weight": weight, "row": self.row, "rows": self.rows, "column": self.column, "columns": self.columns,
            "format": f"int{scheme.bits}-{scheme.kind}" if scheme else self.scheme,
            "group": scheme.group if scheme else 0,
        }  # fmt: skip

    def takes_codes(self, width: int, padded: int) -> bool:
        """Whether the run can multiply codes of an input of `width` columns, behind which there are zeros to `padded`.

        It starts with a block, and its groups end with its columns or, if they are the last ones, within the padding.
        """
        scheme = payload.parse_scheme(self.scheme)
        if scheme is None or self.column % BLOCK:
            return False
        end = self.column + self.columns
        return self.column + scheme.groups(self.columns) * scheme.group <= (padded if end == width else end)


@dataclass(frozen=True, slots=True)
class Matrix:
    """One or more weights, under one another: the runs of each follow one another by rows or by columns."""

    columns: int
    weights: tuple[tuple[Run, ...], ...]

    @property
    def runs(self) -> tuple[tuple[int, Run], ...]:
        """All runs in the engine's order, with the weight that each belongs to."""
        return tuple((index, run) for index, runs in enumerate(self.weights) for run in runs)

    def takes_codes(self, padded: int) -> bool:
        """Whether all of it can multiply codes; `padded` as in `Run`."""
        return all(run.takes_codes(self.columns, padded) for _, run in self.runs)

    def record(self) -> dict[str, Any]:
        """The fields of a matrix in program.def."""
        return {
            "columns": self.columns,
            "rows": [runs[-1].row + runs[-1].rows for runs in self.weights],
            "runs": [run.record(weight) for weight, run in self.runs],
        }


def padded(width: int) -> int:
    return -(-width // PADDED) * PADDED


def matrix_of(weight: Weight, runs: Sequence[payload.Run]) -> Matrix:
    """The matrix of a stored weight; a stack is cut into its weights."""
    rows, columns = weight.shape[-2:]
    cut = [tuple(_cut(runs, start, rows, columns)) for start in range(0, weight.stored[0], rows)]
    return Matrix(columns, tuple(cut))


def _cut(runs: Sequence[payload.Run], start: int, rows: int, columns: int) -> Iterator[Run]:
    """What a weight of a stack has of the stack's runs; it is rows `start` … of the stack."""
    for run in runs:
        if run.shape[1] < columns:
            yield Run(run.name, start, 0, rows, run.start, run.shape[1], run.scheme)
            continue
        first, last = max(run.start, start), min(run.stop, start + rows)
        if first < last:
            yield Run(run.name, first - run.start, first - start, last - first, 0, columns, run.scheme)
