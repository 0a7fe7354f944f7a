"""Rounding with second-order feedback: codes chosen so that the outputs on calibration inputs change least.

For rows w of a matrix and H, the second moment of its input, an error e costs e H eᵀ. Columns are rounded one after
another, and each makes up for what those before it lost (GPTQ, Frantar et al., arXiv:2210.17323, in the form of LDLQ,
Chee et al., arXiv:2307.13304). Then codes and scales are improved in turns by coordinate descent on the same cost.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edge.payload import Scheme
from exporters.quant.grid import Grid, search, to_half
from exporters.quant.method import Array, Parts, Rows, Statistic, Statistics

NEEDS: tuple[Statistic, ...] = ("moment",)
DAMPING = 0.01  # of the mean of H's diagonal, added to it
ROUNDS = 2  # of coordinate descent
_BLOCK = 64  # columns between two updates by a product of whole matrices


def quantize(weight: Rows, scheme: Scheme, statistics: Statistics | None) -> Parts:
    """Codes of these rows under the moment of their input."""
    assert statistics is not None
    assert statistics.moment is not None
    return encode(scheme, weight.read(), damped(statistics.moment))


def damped(moment: Array) -> Array:
    """H with something added to its diagonal, so that it is well conditioned, a column that is always zero included."""
    diagonal = float(np.mean(np.diagonal(moment), dtype=np.float64))
    found = moment.copy()
    found[np.diag_indices_from(found)] += np.float32(DAMPING * diagonal) if diagonal > 0 else np.float32(1)
    return found


def encode(scheme: Scheme, weight: Array, moment: Array) -> Parts:
    """The parts of rows [rows, columns] under a well-conditioned moment [columns, columns]."""
    columns = weight.shape[1]
    w = np.ascontiguousarray(weight.T)
    importance = np.ascontiguousarray(np.diagonal(moment))
    grid = search(scheme, w, importance)
    order = np.argsort(-importance, kind="stable")
    codes = _round(grid, w[order], moment[np.ix_(order, order)], order // scheme.group)
    back = np.empty_like(codes)
    back[order] = codes
    for _ in range(ROUNDS):
        _refit(grid, back, w, moment)
        _descend(grid, back, w, moment)
    return grid.parts(back, columns)


def _feedback(moment: Array) -> Array:
    """The unit upper triangle U of H = U D Uᵀ."""
    flipped = np.linalg.cholesky(moment[::-1, ::-1].astype(np.float64))[::-1, ::-1]
    return np.asarray(flipped / np.diagonal(flipped), np.float32)


def _round(grid: Grid, w: Array, moment: Array, groups: npt.NDArray[np.intp]) -> Array:
    """Codes of w [columns, rows], each column rounded after the feedback of those before it."""
    upper = _feedback(moment)
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
