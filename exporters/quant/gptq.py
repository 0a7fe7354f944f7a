"""Rounding with second-order feedback: codes chosen so that the outputs on calibration inputs change least.

For rows w of a matrix and H, the second moment of its input, an error e costs e H eᵀ. Columns are rounded one after
another, and each makes up for what those before it lost (GPTQ, Frantar et al., arXiv:2210.17323, in the form of LDLQ,
Chee et al., arXiv:2307.13304). Then codes and scales are improved in turns by coordinate descent on the same cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.payload import Scheme
from exporters.quant.grid import Grid, search, to_half
from exporters.quant.method import Array, Parts, Rows, Statistic, Statistics

NEEDS: tuple[Statistic, ...] = ("moment",)
DAMPING = 0.01  # of the mean of H's diagonal, added to it
ROUNDS = 2  # of coordinate descent
EXACT = 8192  # columns up to which H is factored in float64
_FACTORED = 512  # columns of H that are factored at a time
_BLOCK = 64  # columns between two updates by a product of whole matrices


def quantize(weight: Rows, scheme: Scheme, statistics: Statistics | None) -> Parts:
    """Codes of these rows under the moment of their input."""
    assert statistics is not None
    rows = weight.read()
    return encode(scheme, rows, objective(statistics))


@dataclass(frozen=True, slots=True)
class Objective:
    """What an error costs, and what is worked out of that once for all rows.

    moment   [columns, columns]  H, well conditioned
    order    [columns]           the order in which columns are rounded: the most important first
    upper    [columns, columns]  the unit upper triangle U of H = U D Uᵀ, in that order
    """

    moment: Array
    order: npt.NDArray[np.intp]
    upper: Array

    @classmethod
    def of(cls, moment: Array) -> Objective:
        conditioned = damped(moment)
        order = np.argsort(-np.diagonal(conditioned), kind="stable")
        return cls(conditioned, order, feedback(conditioned, order))


def objective(statistics: Statistics) -> Objective:
    """What is worked out of a moment, once for all matrices that share it."""
    moment = statistics.moment
    assert moment is not None
    return statistics.memo.get(__name__, lambda: Objective.of(moment))


def damped(moment: Array) -> Array:
    """With something added to the diagonal, so that a column that is always zero is no exception."""
    mean = float(np.mean(np.diagonal(moment), dtype=np.float64))
    found = moment.copy()
    found[np.diag_indices_from(found)] += np.float32(DAMPING * mean) if mean > 0 else np.float32(1)
    return found


def encode(scheme: Scheme, weight: Array, objective: Objective) -> Parts:
    """The parts of rows [rows, columns]."""
    columns, order, moment = weight.shape[1], objective.order, objective.moment
    w = np.ascontiguousarray(weight.T)
    grid = search(scheme, w, np.ascontiguousarray(np.diagonal(moment)))
    codes = _round(grid, w[order], objective.upper, order // scheme.group)
    back = np.empty_like(codes)
    back[order] = codes
    for _ in range(ROUNDS):
        _refit(grid, back, w, moment)
        _descend(grid, back, w, moment)
    return grid.parts(back, columns)


def feedback(moment: Array, order: npt.NDArray[np.intp]) -> Array:
    """The unit upper triangle. Wide moments are factored in float32: a copy of one in float64 is gigabytes."""
    flipped = moment[np.ix_(order[::-1], order[::-1])]
    lower = _cholesky(flipped.astype(np.float64) if len(moment) <= EXACT else flipped)
    lower /= np.diagonal(lower).copy()
    return np.asarray(lower, np.float32)[::-1, ::-1]


def _cholesky(matrix: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The lower triangle L of L Lᵀ, in the place of the matrix: numpy's own takes three times its memory."""
    for start in range(0, len(matrix), _FACTORED):
        stop = min(start + _FACTORED, len(matrix))
        corner = np.linalg.cholesky(matrix[start:stop, start:stop])
        matrix[start:stop, start:stop], matrix[start:stop, stop:] = corner, 0
        matrix[stop:, start:stop] = matrix[stop:, start:stop] @ np.linalg.inv(corner).T
        for row in range(stop, len(matrix), _FACTORED):
            end = min(row + _FACTORED, len(matrix))
            matrix[row:end, stop:end] -= matrix[row:end, start:stop] @ matrix[stop:end, start:stop].T
    return matrix


def _round(grid: Grid, w: Array, upper: Array, groups: npt.NDArray[np.intp]) -> Array:
    """Codes of w [columns, rows], each column rounded after the feedback of those before it."""
    codes, errors = np.empty_like(w), np.empty_like(w)
    for start in range(0, len(w), _BLOCK):
        stop = min(start + _BLOCK, len(w))
        wanted = w[start:stop] + upper[:start, start:stop].T @ errors[:start]
        for column in range(start, stop):
            group = int(groups[column])
            aim = wanted[column - start] + upper[start:column, column] @ errors[start:column]
            codes[column] = grid.codes(aim, group)
            errors[column] = w[column] - grid.values(codes[column], group)
    return codes


def _errors(grid: Grid, codes: Array, w: Array) -> Array:
    size = grid.scheme.group
    found = np.empty_like(w)
    for group in range(len(grid.scales)):
        part = slice(group * size, (group + 1) * size)
        found[part] = w[part] - grid.values(codes[part], group)
    return found


def _refit(grid: Grid, codes: Array, w: Array, moment: Array) -> None:
    """The best scale of each group, and offset, with codes and the other groups as they are."""
    size = grid.scheme.group
    pull = moment @ _errors(grid, codes, w)  # [columns, rows]: how the cost falls with each number
    for group in range(len(grid.scales)):
        part = slice(group * size, min((group + 1) * size, len(w)))
        directions = [(grid.scales, codes[part])]
        if grid.scheme.kind == "affine":
            directions.append((grid.offsets, np.ones_like(codes[part])))
        for values, direction in directions:
            bent = moment[part, part] @ direction
            curve = np.einsum("ij,ij->j", direction, bent)
            slope = np.einsum("ij,ij->j", direction, pull[part])
            step = np.divide(slope, curve, out=np.zeros_like(slope), where=curve > 0)
            new = to_half(values[group] + step)
            pull -= moment[:, part] @ (direction * (new - values[group]))
            values[group] = new


def _descend(grid: Grid, codes: Array, w: Array, moment: Array) -> None:
    """One round over the columns: each code is the best with all others as they are."""
    errors = _errors(grid, codes, w)
    diagonal = np.diagonal(moment)
    for start in range(0, len(w), _BLOCK):
        stop = min(start + _BLOCK, len(w))
        pull = moment[start:stop] @ errors
        moved = np.zeros_like(pull)
        for column in range(start, stop):
            group, at = column // grid.scheme.group, column - start
            mine = pull[at] - moment[column, start:column] @ moved[:at]
            now = w[column] - errors[column]
            codes[column] = grid.codes(now + mine / diagonal[column], group)
            new = grid.values(codes[column], group)
            moved[at] = new - now
            errors[column] = w[column] - new
