"""Round to nearest: every code is the nearest there is, and the scale search is worth its name."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.payload import Scheme, dequantize, parse_scheme, unpack
from exporters.quant.rtn import encode

NAMES = [*(f"int4-g{group}-{kind}" for group in (32, 64, 128) for kind in ("sym", "zp", "affine")), "int8-g32-sym"]
Array = npt.NDArray[np.float32]


def scheme(name: str) -> Scheme:
    found = parse_scheme(name)
    assert found is not None
    return found


def weights(rows: int, columns: int, seed: int = 0) -> Array:
    """Normal weights with an outlier here and there, and rows of very different size."""
    rng = np.random.default_rng(seed)
    w = rng.normal(size=(rows, columns)) * np.exp(rng.normal(-3, 2, size=(rows, 1)))
    w[rng.random(w.shape) < 0.01] *= 10
    return w.astype(np.float32)


def grouped(w: Array, group: int) -> Array:
    """[rows, groups, group], the last group padded with zeros."""
    padding = -w.shape[1] % group
    return np.pad(w, ((0, 0), (0, padding))).reshape(len(w), -1, group)


def check_nearest(name: str, w: Array) -> None:
    """No code of the group's own scale and shift comes nearer: the error is half a step wherever nothing is clipped."""
    kind = scheme(name)
    parts = encode(kind, w)
    assert {part: (values.shape, values.dtype.name) for part, values in parts.items()} == {
        part: (shape, {"U8": "uint8", "F16": "float16"}[dtype]) for part, (dtype, shape) in kind.parts(*w.shape).items()
    }
    codes, scales, shifts = (x.astype(np.float64) for x in unpack(kind, parts))
    target = grouped(w, kind.group).astype(np.float64)
    error = np.abs(codes * scales + shifts - target)
    levels = scales[..., None] * np.arange(1 << kind.bits) + shifts[..., None]
    best = np.abs(levels - target[..., None]).min(axis=-1)
    step = np.abs(scales)
    assert (error <= best + 1e-5 * step + 1e-9).all()
    inside = (codes > 0) & (codes < (1 << kind.bits) - 1)
    assert (error[inside] <= np.broadcast_to(step * 0.50001 + 1e-9, error.shape)[inside]).all()
    np.testing.assert_allclose(dequantize(kind, parts, w.shape[1]), (codes * scales + shifts).reshape(len(w), -1)[
        :, : w.shape[1]], rtol=1e-5, atol=1e-9)  # fmt: skip


@pytest.mark.parametrize("columns", [576, 896, 100, 1])
@pytest.mark.parametrize("name", NAMES)
def test_q1_every_code_is_the_nearest_at_any_width(name: str, columns: int) -> None:
    check_nearest(name, weights(6, columns))


@given(
    name=st.sampled_from(NAMES),
    values=st.lists(st.floats(-65504, 65504, width=32), min_size=1, max_size=70),
)
@settings(max_examples=150, deadline=None)
def test_any_finite_numbers(name: str, values: list[float]) -> None:
    """Denormals, mixed sizes and constants: no warning, and an error that the group's own range explains."""
    w = np.array([values], np.float32)
    kind = scheme(name)
    found = dequantize(kind, encode(kind, w), len(values))
    assert np.isfinite(found).all()
    reach = np.abs(grouped(w, kind.group)).max(axis=-1, keepdims=True)
    steps = 100 if kind.bits == 8 else 4.5  # the search may clip a fifth of the range
    error = np.abs(grouped(found, kind.group) - grouped(w, kind.group))
    assert (error <= reach / steps + 3e-8 * 2**kind.bits).all()


def plain(w: Array, bits: int, group: int) -> npt.NDArray[np.float64]:
    """Max-abs rounding, written on its own: scale = max|w| / 7 (127), codes clipped to the range."""
    blocks = grouped(w, group).astype(np.float64)
    top = 2 ** (bits - 1) - 1
    scale = (np.abs(blocks).max(axis=-1, keepdims=True) / top).astype(np.float16).astype(np.float64)
    codes = np.divide(blocks, scale, out=np.zeros_like(blocks), where=scale > 0).round().clip(-top - 1, top)
    error: npt.NDArray[np.float64] = ((codes * scale - blocks) ** 2).sum(axis=-1)
    return error


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("sym")])
def test_the_search_is_never_worse_than_max_abs_rounding(name: str) -> None:
    kind = scheme(name)
    w = weights(256, 512, seed=1)
    found = dequantize(kind, encode(kind, w), 512)
    error = ((grouped(found, kind.group) - grouped(w, kind.group)).astype(np.float64) ** 2).sum(axis=-1)
    baseline = plain(w, kind.bits, kind.group)
    # But for the rounding of both scales to float16: relative 2^-11 each, absolute 3e-8 for the smallest ones.
    norm = np.linalg.norm(grouped(w, kind.group).astype(np.float64), axis=-1)
    slack = 2 * (2.0**-11 * norm + 3e-8 * 128 * np.sqrt(kind.group))
    assert (np.sqrt(error) <= np.sqrt(baseline) + slack).all()
    if kind.bits == 4:
        assert error.sum() < 0.9 * baseline.sum()


@pytest.mark.parametrize("name", NAMES)
def test_a_group_of_zeros_is_zero_and_leaves_its_neighbours_alone(name: str) -> None:
    kind = scheme(name)
    w = weights(2, 3 * kind.group)
    w[0, kind.group : 2 * kind.group] = 0
    found = dequantize(kind, encode(kind, w), w.shape[1])
    assert not found[0, kind.group : 2 * kind.group].any()
    apart = dequantize(kind, encode(kind, np.ascontiguousarray(w[:, : kind.group])), kind.group)
    np.testing.assert_array_equal(found[:, : kind.group], apart)


@pytest.mark.parametrize("name", NAMES)
def test_padding_stands_for_zero(name: str) -> None:
    """A backend may run the padded width: what it multiplies there must not count."""
    kind = scheme(name)
    w = np.abs(weights(4, kind.group + 5)) + 0.5  # a group far from zero
    codes, scales, shifts = unpack(kind, encode(kind, w))
    padding = (codes * scales + shifts).reshape(4, -1)[:, w.shape[1] :]
    assert padding.shape == (4, kind.group - 5)
    reach = w[:, kind.group :].max(axis=1, keepdims=True)
    assert (np.abs(padding) <= reach / 15 / 2 * 1.3).all()


@pytest.mark.parametrize("size", [1e-40, 1e-30, 3e-8, 1e-5, 1e3, 65504.0])
@pytest.mark.parametrize("name", ["int4-g32-sym", "int4-g32-zp", "int4-g32-affine", "int8-g32-sym"])
def test_tiny_and_huge_groups(name: str, size: float) -> None:
    w = np.float32(size) * np.linspace(-1, 1, 32, dtype=np.float32)[None]
    kind = scheme(name)
    parts: dict[str, Any] = encode(kind, w)
    found = dequantize(kind, parts, 32)
    assert np.isfinite(found).all()
    # Half a step of the coarsest grid, and what rounding the scale to a multiple of 6e-8 adds.
    assert np.abs(found - w).max() <= size / (100 if kind.bits == 8 else 6) + 3e-8 * 2**kind.bits
