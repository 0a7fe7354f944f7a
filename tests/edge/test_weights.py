"""Reading a payload: its parts by rows, and files that are not what the manifest says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from edge.errors import BundleError
from edge.ops import Weight
from edge.weights import Weights

ROWS, COLUMNS = 5, 40  # two groups of 32, the second padded
WEIGHTS = (Weight("w", (ROWS, COLUMNS), "gate"), Weight("half", (3, 2), "up"), Weight("norm", (COLUMNS,), "norm"))
SCHEMES = {"w": "int4-g32-zp", "half": "float16"}


def tensors() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "w.codes": rng.integers(0, 256, (ROWS, 32)).astype(np.uint8),
        "w.scales": rng.normal(size=(ROWS, 2)).astype(np.float16),
        "w.zeros": rng.integers(0, 256, (ROWS, 1)).astype(np.uint8),
        "half": rng.normal(size=(3, 2)).astype(np.float16),
        "norm": rng.normal(size=COLUMNS).astype(np.float32),
    }


def write(path: Path, values: dict[str, Any]) -> Path:
    safetensors.numpy.save_file(values, path)
    return path


def test_rows_are_read_as_the_rule_says(tmp_path: Path) -> None:
    values = tensors()
    weights = Weights(write(tmp_path / "x", values), WEIGHTS, SCHEMES)
    codes, zeros = values["w.codes"], values["w.zeros"]
    expected = [
        [
            float(values["w.scales"][row, c // 32])
            * (int(codes[row, c // 2] >> 4 * (c % 2) & 15) - int(zeros[row, 0] >> 4 * (c // 32) & 15))
            for c in range(COLUMNS)
        ]
        for row in range(ROWS)
    ]
    np.testing.assert_allclose(weights.read("w"), expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(weights.read("w", 2, 4), expected[2:4], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(weights.read("w", 4, 99), weights.read("w")[4:])
    assert weights.parts("w", 1, 3)["codes"].tolist() == codes[1:3].tolist()
    assert weights.read("half").dtype == np.float32
    np.testing.assert_array_equal(weights.read("half"), values["half"].astype(np.float32))
    np.testing.assert_array_equal(weights.read("norm"), values["norm"])
    assert weights.size("w") == ROWS * (32 + 4 + 1)
    assert (weights.count("w"), weights.size("half"), weights.size("norm")) == (200, 12, 160)


@pytest.mark.parametrize(
    ("tensor", "value", "words"),
    [
        ("w.zeros", None, "tensor 'w.zeros' is missing"),
        ("w.codes", np.zeros((ROWS, 20), np.uint8), r"'w.codes' is U8 \[5, 20\], U8 \[5, 32\] is needed"),
        ("w.scales", np.zeros((ROWS, 2), np.float32), r"is F32 \[5, 2\], F16"),
        ("norm", np.zeros((1, COLUMNS), np.float32), r"is F32 \[1, 40\], F32 \[40\]"),
    ],
)
def test_a_payload_of_another_layout_is_refused(tensor: str, value: Any, words: str, tmp_path: Path) -> None:
    values = tensors()
    if value is None:
        del values[tensor]
    else:
        values[tensor] = value
    with pytest.raises(BundleError, match=words):
        Weights(write(tmp_path / "x", values), WEIGHTS, SCHEMES)


@pytest.mark.parametrize(
    ("schemes", "words"),
    [({"w": "int3"}, "unknown scheme 'int3'"), ({"norm": "int4-g32-sym"}, "norm is a vector")],
)
def test_a_scheme_that_cannot_be_is_the_bundles_fault(schemes: dict[str, str], words: str, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=words):
        Weights(write(tmp_path / "x", tensors()), WEIGHTS, {**SCHEMES, **schemes})


def test_a_file_that_shrinks_or_goes_after_opening(tmp_path: Path) -> None:
    path = write(tmp_path / "x", tensors())
    weights = Weights(path, WEIGHTS, SCHEMES)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(BundleError, match="truncated while it was read"):
        [weights.read(weight.name) for weight in WEIGHTS]
    path.unlink()
    with pytest.raises(BundleError, match="cannot be read"):
        weights.read("norm")
