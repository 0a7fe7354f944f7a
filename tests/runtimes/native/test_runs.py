"""Matrices in runs of formats: each row or column read in its own, to bits that depend on nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from edge import payload
from edge.payload import Layout, Run
from edge.runtime import support
from tests.runtimes.native.kernel_sets import SETS
from tests.runtimes.native.linear_engine import quantized, random_parts, random_rows
from tests.runtimes.native.tables import cut, engine_of, pack

pytestmark = pytest.mark.skipif(not support("native").devices, reason="the native engine was not built")

ROWS, COLUMNS, TOKENS = 90, 160, 9
Array = npt.NDArray[Any]


def stored(run: Run, seed: int) -> tuple[list[Array], npt.NDArray[np.float64]]:
    """What a run's payload has, in the engine's order, and the numbers that it stands for."""
    scheme = payload.parse_scheme(run.scheme)
    if scheme is None:
        dtype = np.float16 if run.scheme == "float16" else np.float32
        values = np.random.default_rng(seed).normal(0, 0.5, run.shape).astype(dtype)
        return [values], values.astype(np.float64)
    parts = random_parts(scheme, *run.shape, seed=seed)
    found = [parts[name] for name in ("codes", "scales", "zeros", "offsets") if name in parts]
    return found, payload.dequantize(scheme, parts, run.shape[1]).astype(np.float64)


class Mixed:
    """One weight in a layout, its numbers, and an engine that multiplies rows of x with it."""

    def __init__(
        self, layout: str, x: npt.NDArray[np.float32], *, codes: bool, kernels: str = "", threads: int = 1
    ) -> None:
        self.x, self.parsed = x, Layout.parse(layout)
        runs = self.parsed.split("w", (ROWS, COLUMNS))
        packed = [stored(run, seed) for seed, run in enumerate(runs)]
        self.weight = np.concatenate([values for _, values in packed], 0 if self.parsed.axis == "rows" else 1)
        self.shape = cut(ROWS, COLUMNS, self.parsed.axis, *[self._format(run) for run in runs])
        self.steps: list[dict[str, Any]] = [
            {"kind": "embed", "output": 1, "matrix": 0, "scale": 1.0},
            {"kind": "select", "input": 1, "output": 2},
            {"kind": "quantize", "input": 2, "output": 3, "crest": 4.5},
            {"kind": "linear", "input": 3 if codes else 2, "residual": None, "outputs": [0], "matrix": 1,
             "biases": [None]},
        ]  # fmt: skip
        buffers = [(ROWS, "wanted"), (COLUMNS, ""), (COLUMNS, "wanted"), (COLUMNS, "wanted codes")]
        matrices = [("float32", 0, COLUMNS, [len(x)]), self.shape]
        self.engine = engine_of(self.steps, buffers, matrices, kernels=kernels, threads=threads)
        pack(self.engine, 0, 0, x)
        for index, (arrays, _) in enumerate(packed):
            pack(self.engine, 1, index, *arrays)

    def _format(self, run: Run) -> tuple[str, int, int]:
        scheme = payload.parse_scheme(run.scheme)
        size = run.stop - run.start
        return (f"int{scheme.bits}-{scheme.kind}", scheme.group, size) if scheme else (run.scheme, 0, size)

    def run(self, ids: list[int]) -> npt.NDArray[np.float32]:
        tokens, out = np.array(ids, np.int32), np.full((len(ids), ROWS), np.nan, np.float32)
        wanted = np.arange(len(ids), dtype=np.int64)
        self.engine.forward(tokens, np.array([[len(ids), 0]]), [[]], [], wanted, out)
        return out


# On panels' ends and across them, three formats in one panel, and columns of whole and of padded groups.
CODES = [
    "rows 32 int8-g32-sym, 58 int4-g32-sym",
    "rows 16 int4-g64-zp, 8 int4-g32-affine, 66 int8-g32-sym",
    "rows 1 int4-g128-sym, 88 int8-g32-sym, 1 int4-g32-zp",
    "columns 32 int8-g32-sym, 128 int4-g32-sym",
    "columns 64 int4-g64-affine, 32 int8-g32-sym, 64 int4-g64-zp",
    "columns 128 int4-g128-zp, 32 int4-g128-affine",
]
FLOATS = ["rows 40 float16, 50 int4-g32-zp", "columns 20 float32, 100 int4-g64-affine, 40 int8-g32-sym"]


@pytest.mark.parametrize("kernels", SETS)
@pytest.mark.parametrize("layout", [*CODES, *FLOATS])
def test_every_run_is_multiplied_in_its_own_format(layout: str, kernels: str) -> None:
    x = random_rows(TOKENS, COLUMNS)
    for codes in (True, False) if layout in CODES else (False,):
        mixed = Mixed(layout, x, codes=codes, kernels=kernels)
        expected = (quantized(x, 4.5) if codes else x.astype(np.float64)) @ mixed.weight.T
        bound = 1e-5 * float((np.abs(x) @ np.abs(mixed.weight).T).max())
        assert np.abs(mixed.run(list(range(TOKENS))) - expected).max() < bound


@pytest.mark.parametrize("kernels", SETS)
@pytest.mark.parametrize("layout", CODES)
def test_a_row_is_the_same_bits_in_every_batch_and_on_every_number_of_threads(layout: str, kernels: str) -> None:
    x = random_rows(TOKENS, COLUMNS)
    whole = Mixed(layout, x, codes=True, kernels=kernels).run(list(range(TOKENS)))
    other = Mixed(layout, x, codes=True, kernels=kernels, threads=3)
    for first, last in ((0, 1), (8, 9), (3, 8), (0, 9)):
        assert np.array_equal(other.run(list(range(first, last))), whole[first:last])


@pytest.mark.parametrize("layout", [*CODES, *FLOATS])
def test_rows_are_looked_up_in_the_runs_that_hold_them(layout: str) -> None:
    """As an embedding: the row that is picked is the weight's, in every format."""
    mixed = Mixed(layout, random_rows(1, COLUMNS), codes=False)
    steps = [{"kind": "embed", "output": 1, "matrix": 0, "scale": 2.0}, {"kind": "select", "input": 1, "output": 0}]
    engine = engine_of(steps, [(COLUMNS, "wanted"), (COLUMNS, "")], [mixed.shape])
    for seed, run in enumerate(mixed.parsed.split("w", (ROWS, COLUMNS))):
        pack(engine, 0, seed, *stored(run, seed)[0])
    ids, out = np.arange(ROWS, dtype=np.int32), np.empty((ROWS, COLUMNS), np.float32)
    engine.forward(ids, np.array([[ROWS, 0]]), [[]], [], ids.astype(np.int64), out)
    np.testing.assert_allclose(out, 2 * mixed.weight, rtol=1e-5, atol=1e-5)


def test_a_matrix_in_runs_takes_the_bytes_of_its_payload() -> None:
    """Of 32 rows each; where runs meet within a panel, it is there once for each of them."""
    x = random_rows(1, COLUMNS)
    x_bytes, int4, int8 = 32 * COLUMNS * 4, COLUMNS // 32 * (16 + 2), COLUMNS // 32 * (32 + 2)  # of a row
    for layout, expected in (
        ("rows 32 int8-g32-sym, 58 int4-g32-sym", 32 * int8 + 64 * int4),
        ("rows 40 int8-g32-sym, 50 int4-g32-sym", 64 * int8 + 64 * int4),
        ("columns 32 int8-g32-sym, 128 int4-g32-sym", 96 * (int8 // 5 + int4 // 5 * 4)),
    ):
        assert Mixed(layout, x, codes=True).engine.weight_bytes == x_bytes + expected


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weight": 1}, "a weight that is not all in runs|a run of a weight"),
        ({"weight": -1}, "a run of a weight"),
        ({"row": 1}, "does not follow"),
        ({"rows": 60}, "does not follow"),
        ({"rows": 0}, "does not follow"),
        ({"rows": 2**62}, "does not follow"),
        ({"column": 32}, "does not follow"),
        ({"columns": 128}, "does not follow"),
        ({"columns": -(2**63)}, "does not follow"),
        ({"rows": 57}, "a weight that is not all in runs"),
        ({"format": "int5-sym"}, "no such weight format"),
        ({"group": 64, "format": "int8-sym"}, "no such scheme"),
        ({"format": "float16", "group": 0}, "codes as input of a matrix of floats"),
    ],
)
def test_runs_that_are_not_the_weight_are_refused(changes: dict[str, Any], words: str) -> None:
    mixed = Mixed(CODES[0], random_rows(1, COLUMNS), codes=True)
    *size, (first, second) = mixed.shape
    buffers = [(ROWS, "wanted"), (COLUMNS, ""), (COLUMNS, "wanted"), (COLUMNS, "wanted codes")]
    embedding = ("float32", 0, COLUMNS, [1])
    with pytest.raises(ValueError, match=words):
        engine_of(mixed.steps, buffers, [embedding, (*size, [first, {**second, **changes}])])
    with pytest.raises(ValueError, match="does not follow"):
        engine_of(mixed.steps, buffers, [embedding, (*size, [first, second, second])])


@pytest.mark.parametrize(
    "layout",
    [
        "columns 20 int4-g32-sym, 140 int4-g32-sym", "columns 32 int4-g64-sym, 128 int4-g32-sym",
        "columns 96 int4-g32-sym, 64 int4-g128-sym", "rows 40 float16, 50 int4-g32-zp",
    ],
)  # fmt: skip
def test_codes_are_refused_where_blocks_or_groups_are_not_whole(layout: str) -> None:
    """A group that went on behind its run would multiply codes of other columns, or behind a row's end."""
    x = random_rows(1, COLUMNS)
    Mixed(layout, x, codes=False)
    if layout.startswith("columns 96"):
        Mixed(layout, x, codes=True)  # 96 + 128 are within the 256 codes of a row
        return
    with pytest.raises(ValueError, match="codes as input of"):
        Mixed(layout, x, codes=True)
