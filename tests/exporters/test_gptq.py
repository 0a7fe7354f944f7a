"""Rounding with feedback: the codes of the paper, a lower cost than rounding each number, and degenerate groups."""

from __future__ import annotations

import warnings

import numpy as np
import numpy.typing as npt
import pytest

from edge.payload import Scheme
from exporters.quant import gptq, grid, rtn
from exporters.quant.method import Parts
from tests.exporters.test_rtn import NAMES, scheme, weights
from tests.exporters.unpacker import unpack_matrix

Array = npt.NDArray[np.float32]


def moment(columns: int, seed: int = 1) -> Array:
    """Of inputs that hang together, as a model's do, some columns far larger than others."""
    rng = np.random.default_rng(seed)
    mixed = rng.normal(size=(4 * columns, 12)) @ rng.normal(size=(12, columns))
    inputs = (mixed + rng.normal(size=mixed.shape)) * np.exp(rng.normal(0, 1, columns))
    return np.asarray(inputs.T @ inputs / len(inputs), np.float32)


def numbers(kind: Scheme, parts: Parts, columns: int) -> npt.NDArray[np.float64]:
    """What the parts stand for, by the independent unpacker."""
    return unpack_matrix({f"w.{part}": values for part, values in parts.items()}, "w", kind.name, columns)


def cost(w: Array, found: npt.NDArray[np.float64], h: Array) -> float:
    error = w.astype(np.float64) - found
    return float(np.einsum("ij,jk,ik->", error, h.astype(np.float64), error))


@pytest.mark.parametrize("columns", [96, 100, 160])
@pytest.mark.parametrize("name", NAMES)
def test_q1_the_outputs_change_far_less_than_by_rounding_each_number(name: str, columns: int) -> None:
    kind, w, objective = scheme(name), weights(24, columns), gptq.Objective.of(moment(columns))
    h, parts = objective.moment, gptq.encode(kind, w, objective)
    assert {part: (values.shape, values.dtype.name) for part, values in parts.items()} == {
        part: (shape, {"U8": "uint8", "F16": "float16"}[dtype]) for part, (dtype, shape) in kind.parts(*w.shape).items()
    }
    nearest = numbers(kind, rtn.encode(kind, w), columns)
    assert cost(w, numbers(kind, parts, columns), h) < 0.5 * cost(w, nearest, h)


def textbook(kind: Scheme, w: Array, h: Array) -> npt.NDArray[np.float64]:
    """GPTQ as its paper has it, by the inverse's Cholesky factor, column by column, on the grid of the search."""
    found = grid.search(kind, np.ascontiguousarray(w.T), np.ascontiguousarray(np.diagonal(h)))
    order = np.argsort(-np.diagonal(h), kind="stable")
    inverse = np.linalg.inv(h[np.ix_(order, order)].astype(np.float64))
    upper = np.linalg.cholesky(inverse).T
    left, out = w[:, order].astype(np.float64), np.empty(w.shape)
    for column in range(w.shape[1]):
        scale = found.scales[order[column] // kind.group].astype(np.float64)
        out[:, column] = np.clip(np.rint(left[:, column] / scale), -8, 7) * scale
        error = (left[:, column] - out[:, column]) / upper[column, column]
        left[:, column:] -= error[:, None] * upper[column, column:]
    back = np.empty_like(out)
    back[:, order] = out
    return back


def test_the_feedback_is_that_of_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gptq, "ROUNDS", 0)
    kind, w, objective = scheme("int4-g32-sym"), weights(16, 160), gptq.Objective.of(moment(160))
    expected = textbook(kind, w, objective.moment)
    found = numbers(kind, gptq.encode(kind, w, objective), 160)
    same = np.isclose(found, expected, rtol=1e-5, atol=1e-9).all(axis=1)
    assert same.sum() >= 14  # a number that lies on the edge of two codes may fall on either side


def test_descent_never_costs_more(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        costs = []
        for rounds in (0, 1, 4):
            monkeypatch.setattr(gptq, "ROUNDS", rounds)
            kind, w, objective = scheme(name), weights(16, 160), gptq.Objective.of(moment(160))
            costs.append(cost(w, numbers(kind, gptq.encode(kind, w, objective), 160), objective.moment))
        assert costs[1] <= costs[0]
        assert costs[2] <= costs[1] * 1.0001


@pytest.mark.parametrize("name", NAMES)
def test_degenerate_groups_are_defined(name: str) -> None:
    """Zeros, numbers below float16, one huge among small, constants, and inputs that never were."""
    w = np.zeros((5, 256), np.float32)
    w[1] = 1e-40
    w[2, ::7], w[2, 9] = 1e-3, 60000
    w[3] = 0.25
    w[4] = np.linspace(-1, 1, 256)
    h = moment(256)
    h[:, :40] = h[:40] = 0
    kind = scheme(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for inputs in (h, np.zeros_like(h)):
            found = numbers(kind, gptq.encode(kind, w, gptq.Objective.of(inputs)), 256)
            assert np.isfinite(found).all()
            assert not found[0].any()
            assert np.abs(found[1]).max() < 1e-6
            assert abs(found[2, 9] - 60000) < 60000 / 15
            assert np.abs(found[4] - w[4]).max() < 0.5


@pytest.mark.parametrize(("exact", "tolerance"), [(1000, 1e-6), (10, 2e-3)])
def test_the_factors_of_a_moment_that_is_cut_in_pieces_make_it_up_again(
    exact: int, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U D Uᵀ = H in the order of rounding, with pieces that do not divide it, in float64 and in float32."""
    monkeypatch.setattr(gptq, "_FACTORED", 48)
    monkeypatch.setattr(gptq, "EXACT", exact)
    found = gptq.Objective.of(moment(160))
    h = found.moment[np.ix_(found.order, found.order)].astype(np.float64)
    upper = found.upper.astype(np.float64)
    assert not np.tril(upper, -1).any()
    assert (np.diagonal(upper) == 1).all()
    inverse = np.linalg.inv(upper)
    d = inverse @ h @ inverse.T
    assert np.abs(d - np.diag(np.diagonal(d))).max() < tolerance * np.diagonal(d).max()
