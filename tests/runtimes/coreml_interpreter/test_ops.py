"""Each op of the interpreter against coremltools' own value inference, the reference that ships with the format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtimes.coreml_interpreter.check import KINDS, check
from runtimes.coreml_interpreter.evaluate import Interpreter
from tests.coreml_host import COREML
from tests.runtimes.coreml_interpreter.building import save

pytestmark = COREML

RANDOM = np.random.default_rng(0)


def floats(*shape: int, scale: float = 2.0) -> np.ndarray[Any, Any]:
    return (RANDOM.standard_normal(shape) * scale).astype(np.float32)


X, Y, W, STACK = floats(3, 8), floats(3, 8), floats(5, 8), floats(4, 6, 8)
INDICES = np.array([2, 0, 2, 1], np.int32)
ONES = {"begin_mask": [False, False], "end_mask": [False, False]}
# What is computed of which inputs: (op, {input: array}, constant parameters).
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    *((kind, {"x": X, "y": Y}, {}) for kind in ("add", "sub", "mul", "real_div", "maximum", "greater", "less")),
    ("mul", {"x": X, "y": floats(8)}, {}),  # spread over rows
    ("equal", {"x": np.round(X), "y": np.round(Y)}, {}),
    *((kind, {"x": X}, {}) for kind in ("tanh", "sigmoid", "identity", "abs")),
    ("gelu", {"x": X}, {"mode": "TANH_APPROXIMATION"}),
    ("rsqrt", {"x": np.abs(X)}, {"epsilon": np.float32(0.5)}),
    *((kind, {"x": STACK}, {"axes": [-1], "keep_dims": True}) for kind in ("reduce_mean", "reduce_sum", "reduce_max")),
    ("reduce_sum", {"x": STACK}, {"axes": [0], "keep_dims": False}),
    ("softmax", {"x": STACK}, {"axis": -1}),
    ("softmax", {"x": STACK}, {"axis": 1}),
    ("cast", {"x": X}, {"dtype": "int32"}),
    ("pad", {"x": X}, {"pad": [0, 0, 0, 3], "mode": "constant", "constant_val": np.float32(0)}),
    ("pad", {"x": X}, {"pad": [1, 2], "mode": "constant", "constant_val": np.float32(1.5)}),
    ("reshape", {"x": STACK}, {"shape": [2, 12, 8]}),
    ("transpose", {"x": STACK}, {"perm": [2, 0, 1]}),
    ("expand_dims", {"x": X}, {"axes": [-2]}),
    ("slice_by_index", {"x": STACK}, {"begin": [1, 2, 0], "end": [4, 6, 8]}),
    ("slice_by_index", {"x": STACK}, {"begin": [3, 0, 0], "end": [4, 6, 8], "squeeze_mask": [True, False, False]}),
    (
        "slice_by_index",
        {"x": X},
        {"begin": [1, 2], "end": [2, 3], "begin_mask": [True, False], "end_mask": [False, True]},
    ),
    ("gather", {"x": W, "indices": INDICES}, {"axis": 0}),
    ("gather", {"x": W, "indices": INDICES}, {"axis": 1}),
    ("linear", {"x": X}, {"weight": W}),
    ("linear", {"x": X}, {"weight": W, "bias": floats(5)}),
    ("matmul", {"x": STACK, "y": floats(4, 5, 8)}, {"transpose_y": True}),
    ("matmul", {"x": floats(1, 6, 8), "y": floats(4, 8, 5)}, {}),
    ("matmul", {"x": floats(4, 8, 6), "y": floats(4, 8, 5)}, {"transpose_x": True}),
    ("concat", {"values": [X, Y]}, {"axis": -1}),
    ("concat", {"values": [X, Y, W]}, {"axis": 0}),
    ("stack", {"values": [X, Y]}, {"axis": 0}),
    ("stack", {"values": [X, Y]}, {"axis": 1}),
]


def inferred(kind: str, inputs: dict[str, Any], parameters: dict[str, Any]) -> np.ndarray[Any, Any]:
    """What coremltools computes where all inputs are constants."""
    from coremltools.converters.mil import Builder as mb  # noqa: N813
    from coremltools.converters.mil import mil

    function = mil.Function({"unused": mb.placeholder((1,))}, opset_version=_opset())
    with function:
        found = getattr(mb, kind)(**inputs, **parameters)
    assert found.val is not None
    return np.asarray(found.val)


def _opset() -> Any:
    import coremltools

    return coremltools.target.iOS18


def computed(folder: Path, kind: str, inputs: dict[str, Any], parameters: dict[str, Any]) -> np.ndarray[Any, Any]:
    """What the interpreter computes from a package with this op alone."""
    flat = {
        f"{name}_{index}" if isinstance(value, list) else name: item
        for name, value in inputs.items()
        for index, item in enumerate(value if isinstance(value, list) else [value])
    }

    def build(mb: Any, given: dict[str, Any]) -> Any:
        bound = {
            name: [given[f"{name}_{index}"] for index in range(len(value))] if isinstance(value, list) else given[name]
            for name, value in inputs.items()
        }
        made = getattr(mb, kind)(**bound, **parameters)
        return mb.cast(x=made, dtype="fp32") if kind in ("greater", "less", "equal", "cast") else made

    package = save(folder, flat, build)
    check(package)
    return next(iter(Interpreter(package, half=False).run("main", flat).values()))


@pytest.mark.parametrize("case", range(len(CASES)), ids=[f"{kind}-{index}" for index, (kind, _, _) in enumerate(CASES)])
def test_an_op_computes_what_coremltools_infers(case: int, tmp_path: Path) -> None:
    kind, inputs, parameters = CASES[case]
    expected = inferred(kind, inputs, parameters)
    found = computed(tmp_path, kind, inputs, parameters)
    assert found.shape == expected.shape
    assert np.abs(found - expected.astype(np.float32)).max() < 1e-5


def test_a_convolution_with_one_number_a_channel_is_a_product(tmp_path: Path) -> None:
    """coremltools infers no value of it."""
    x, weight, bias = floats(1, 8, 1, 5), floats(6, 8, 1, 1), floats(6)
    parameters = {"weight": weight, "bias": bias, "strides": [1, 1], "pad_type": "valid", "pad": [0] * 4}
    found = computed(tmp_path, "conv", {"x": x}, {**parameters, "dilations": [1, 1], "groups": 1})
    expected = np.einsum("oi,is->os", weight[:, :, 0, 0], x[0, :, 0]) + bias[:, None]
    assert np.abs(found[0, :, 0] - expected).max() < 1e-5


def test_silu_is_x_times_its_sigmoid(tmp_path: Path) -> None:
    """coremltools infers no value of it."""
    x = np.array([[-90.0, -1.0, 0.0, 2.0, 90.0]], np.float32)
    expected = x / (1 + np.exp(-x.astype(np.float64)))
    assert np.abs(computed(tmp_path, "silu", {"x": x}, {}) - expected).max() < 1e-6


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int8", "uint8"])
@pytest.mark.parametrize("offset", [None, "same", "float16"])
def test_codes_become_numbers_as_coremltools_has_it(dtype: str, offset: str | None, tmp_path: Path) -> None:
    """Blocks along both axes; bytes written by coremltools' own library."""
    from coremltools.converters.mil.mil import types

    bits, signed = int(dtype[-1]), dtype.startswith("int")
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if signed else (0, 2**bits)
    marked = types.nptype_from_builtin(getattr(types, dtype))
    codes = RANDOM.integers(low, high, (12, 8)).astype(np.int16)
    scales = np.abs(floats(6, 2)).astype(np.float16)
    shifts = None
    if offset == "same":
        shifts = RANDOM.integers(max(low, 0), high, (6, 2)).astype(np.int16)
    elif offset == "float16":
        shifts = floats(6, 2).astype(np.float16)
    expected = np.empty((12, 8), np.float32)
    for i in range(12):
        for j in range(8):
            shift = 0.0 if shifts is None else float(shifts[i // 2, j // 4])
            expected[i, j] = float(scales[i // 2, j // 4]) * (float(codes[i, j]) - shift)

    def build(mb: Any, given: dict[str, Any]) -> Any:
        stored = {} if shifts is None else {"offset": shifts.astype(marked if offset == "same" else np.float16)}
        weight = mb.constexpr_blockwise_shift_scale(data=codes.astype(marked), scale=scales, **stored)
        return mb.gather(x=weight, indices=given["indices"], axis=0)

    package = save(tmp_path, {"indices": np.arange(12, dtype=np.int32)}, build)
    check(package)
    (found,) = Interpreter(package, half=False).run("main", {"indices": np.arange(12)}).values()
    assert np.abs(found - expected).max() < 1e-6
    (rounded,) = Interpreter(package, half=True).run("main", {"indices": np.arange(12)}).values()
    assert np.array_equal(rounded, expected.astype(np.float16).astype(np.float32))


def test_every_kind_has_a_case() -> None:
    tried = {kind for kind, _, _ in CASES} | {"silu", "conv", "constexpr_blockwise_shift_scale"}
    assert tried == set(KINDS)


def test_half_rounds_after_every_op_and_counts_what_overflows(tmp_path: Path) -> None:
    def build(mb: Any, given: dict[str, Any]) -> Any:
        halves = mb.cast(x=given["x"], dtype="fp16", name="halves")
        return mb.cast(x=mb.mul(x=halves, y=halves, name="squares"), dtype="fp32", name="wide")

    package = save(tmp_path, {"x": np.zeros(3, np.float32)}, build)
    x = np.array([1.0001, 300.0, 3.0], np.float32)
    half, exact = Interpreter(package, half=True), Interpreter(package, half=False)
    assert half.run("main", {"x": x})["wide"].tolist() == [1.0, np.inf, 9.0]  # 1.0001 is 1 in float16
    assert dict(half.overflows) == {"squares": 1}
    assert exact.run("main", {"x": x})["wide"].tolist() == [np.float32(1.0001) ** 2, 90000.0, 9.0]
    assert not exact.overflows
