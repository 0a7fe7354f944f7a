"""The kernel sets against the portable one, and that against plain numpy, on shapes with all kinds of edges."""

from __future__ import annotations

import numpy as np
import pytest

from edge.payload import parse_scheme
from tests.runtimes.native.kernel_sets import SETS
from tests.runtimes.native.linear_engine import dequantized, quantized, random_parts, random_rows, run_linear

SCHEMES = [f"int4-g{group}-{kind}" for group in (32, 64, 128) for kind in ("sym", "zp", "affine")] + ["int8-g32-sym"]
# rows, columns, tokens: one of each, no multiples of a panel, a group or a tile, one group, one padded group.
SHAPES = [(1, 1, 1), (33, 100, 5), (31, 32, 3), (64, 90, 9), (100, 576, 1), (40, 257, 6)]


def scale_of(x: np.ndarray, weight: np.ndarray) -> float:
    """The size of the sums of absolute products: what rounding errors are measured by."""
    return float((np.abs(x) @ np.abs(weight).T).max())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_portable_kernels_multiply_what_they_quantize(scheme: str, shape: tuple[int, int, int]) -> None:
    rows, columns, tokens = shape
    kind = parse_scheme(scheme)
    assert kind is not None
    parts, x = random_parts(kind, rows, columns), random_rows(tokens, columns)
    weight = dequantized(kind, parts, columns)
    for crest in (0.0, 4.5, 9.0):
        expected = quantized(x, crest) @ weight.T
        found = run_linear(kind, parts, x, kernels="portable", crest=crest)
        # A quotient within rounding of a half may go either way: one step of one block's 8-bit codes.
        assert np.abs(found - expected).max() < 1e-5 * scale_of(x, weight) + 1e-6


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kernels", SETS[1:])
def test_kernel_sets_agree_with_the_portable_one(kernels: str, scheme: str, shape: tuple[int, int, int]) -> None:
    rows, columns, tokens = shape
    kind = parse_scheme(scheme)
    assert kind is not None
    parts, x = random_parts(kind, rows, columns), random_rows(tokens, columns)
    bound = 1e-5 * scale_of(x, dequantized(kind, parts, columns)) + 1e-6
    for crest in (0.0, 4.5, 9.0, None):
        expected = run_linear(kind, parts, x, kernels="portable", crest=crest)
        found = run_linear(kind, parts, x, kernels=kernels, crest=crest)
        assert np.abs(found - expected).max() < bound


@pytest.mark.parametrize("kernels", SETS)
def test_float_activations_give_the_exact_product(kernels: str) -> None:
    kind = parse_scheme("int4-g64-zp")
    assert kind is not None
    parts, x = random_parts(kind, 50, 150), random_rows(4, 150)
    weight = dequantized(kind, parts, 150)
    found = run_linear(kind, parts, x, kernels=kernels, crest=None)
    assert np.abs(found - x.astype(np.float64) @ weight.T).max() < 1e-6 * scale_of(x, weight)


@pytest.mark.parametrize("kernels", SETS)
@pytest.mark.parametrize("scheme", ["int4-g32-affine", "int4-g64-zp", "int8-g32-sym"])
def test_a_row_is_the_same_bits_in_every_batch_and_on_every_number_of_threads(kernels: str, scheme: str) -> None:
    kind = parse_scheme(scheme)
    assert kind is not None
    parts, x = random_parts(kind, 90, 200), random_rows(13, 200)
    whole = run_linear(kind, parts, x, kernels=kernels)
    for first, last in ((0, 1), (12, 13), (3, 10), (5, 9)):
        some = run_linear(kind, parts, x[first:last].copy(), kernels=kernels, threads=3)
        assert np.array_equal(some, whole[first:last])


@pytest.mark.parametrize("kernels", SETS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_reaches_every_result(kernels: str, value: float) -> None:
    kind = parse_scheme("int4-g32-sym")
    assert kind is not None
    x = random_rows(3, 64)
    x[1, 40] = value
    found = run_linear(kind, random_parts(kind, 8, 64), x, kernels=kernels)
    assert np.isnan(found[1]).all()
    assert np.isfinite(found[[0, 2]]).all()
