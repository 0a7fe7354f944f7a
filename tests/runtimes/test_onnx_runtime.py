"""What is particular to ONNX Runtime: its graph against the manifest, and the kernel that linears are made of."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import edge
from edge import payload
from edge.bundle import Bundle, Manifest
from edge.errors import BundleError, FormatError, OptionError
from edge.kv import Pools, plan_layout
from edge.options import RuntimeOptions
from edge.runtime import open_runtime
from edge.session import Session
from tests.edge.interrupts import interrupted_at
from tests.exporters.tiny import tiny_mistral

Spec = dict[str, Any]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("mistral")
    return edge.export(tiny_mistral(folder / "source", sliding_window=8), folder / "tiny.dsedge")


def other_spec(bundle: Bundle, change: Callable[[Spec], object]) -> Bundle:
    """The bundle with another spec in its manifest, as `open_bundle` would give it if the payload allowed."""
    data = json.loads((bundle.path / "manifest.json").read_text())
    change(data["spec"])
    return Bundle(bundle.path, Manifest.from_json(data))


def all_layers(spec: Spec, **fields: int) -> None:
    for layer in spec["layers"]:
        layer["attention"].update(fields)


CHANGES: dict[str, tuple[Callable[[Spec], object], str]] = {
    "head_dim": (
        lambda spec: all_layers(spec, head_dim=32),
        r"past\.0\.key is float \[1, 2, 'capacity\.0', 16\] in the graph and float \[1, 2, 'capacity\.0', 32\] by",
    ),
    "kv_heads": (lambda spec: all_layers(spec, kv_heads=1), r"past\.0\.key is float \[1, 2, .* \[1, 1, "),
    "vocab": (lambda spec: spec.update(vocab_size=301), r"logits is float \[1, 'rows', 300\] .* \[1, 'rows', 301\]"),
    "hidden": (lambda spec: spec.update(hidden_size=65), r"hidden is float .*64\] .*65\]"),
    "rope": (
        lambda spec: spec["ropes"][0].update(dim=8),
        r"rope\.0\.cos is float \['angles\.0', 8\] .*\['angles\.0', 4\]",
    ),
    "window": (
        lambda spec: spec["layers"][1]["attention"].update(window=None),
        r"ring\.1\.total is absent in the graph and int32 \[\] by",
    ),
    "fewer layers": (lambda spec: spec["layers"].pop(), r"past\.1\.key is float .* and absent by the manifest's spec"),
    "more layers": (
        lambda spec: spec["layers"].append(spec["layers"][0]),
        r"past\.2\.key is absent in the graph and float",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_spec_that_is_not_the_graphs_is_refused_at_opening(name: str, bundle: Bundle) -> None:
    change, words = CHANGES[name]
    changed = other_spec(bundle, change)
    with pytest.raises(BundleError, match=words) as caught:
        open_runtime(changed, plan_layout(changed.spec, 32), RuntimeOptions(runtime="onnx"))
    assert str(caught.value).startswith(str(bundle.path / "decoder.onnx"))
    assert "\n" not in str(caught.value)


def test_layers_that_trade_their_windows_are_noticed(tmp_path: Path) -> None:
    """Every size is the same then: only the names of sizes tell one ring from another."""
    from tests.exporters.tiny import tiny_gemma3

    gemma = edge.export(tiny_gemma3(tmp_path / "source"), tmp_path / "tiny.dsedge")
    windows = [layer.attention.window for layer in gemma.spec.layers]
    odd = next(i for i, window in enumerate(windows) if window != windows[0])

    def trade(spec: Spec) -> None:
        last = spec["layers"][-1] if windows[-1] != windows[odd] else spec["layers"][odd - 1]
        last["attention"]["window"] = windows[odd]

    changed = other_spec(gemma, trade)
    assert len(changed.spec.kv_groups) == len(gemma.spec.kv_groups)
    with pytest.raises(BundleError, match=r"past\.\d\.key is .*'capacity\.[01]'.*'capacity\.[01]'"):
        open_runtime(changed, plan_layout(changed.spec, 32), RuntimeOptions(runtime="onnx"))


@pytest.mark.parametrize("size", [16, 48, 256, 512])
def test_q3_a_block_size_that_was_not_verified_is_refused(size: int, tmp_path: Path) -> None:
    for kind in ("sym", "zp", "affine"):
        with pytest.raises(FormatError, match=f"unknown scheme 'int4-g{size}-{kind}'; known are int4-g"):
            payload.parse_scheme(f"int4-g{size}-{kind}")
    with pytest.raises(FormatError, match="unknown scheme 'int8-g64-sym'"):
        payload.parse_scheme("int8-g64-sym")
    (tmp_path / "recipe.toml").write_text(f'[[rule]]\nmatch = "*"\nscheme = "int4-g{size}-sym"\n')
    source = tiny_mistral(tmp_path / "source")
    with pytest.raises(OptionError, match=f"unknown scheme 'int4-g{size}-sym'"):
        edge.export(source, tmp_path / "x.dsedge", recipe=tmp_path / "recipe.toml")
    assert not (tmp_path / "x.dsedge").exists()


COLUMNS, ROWS = 2048, 4


def matmul(x: Any, codes: Any, scales: Any, scheme: payload.Scheme, level: int) -> Any:
    """x · Wᵀ by one MatMulNBits in an ONNX Runtime of its own."""
    node = helper.make_node(
        "MatMulNBits", ["x", "codes", "scales"], ["y"], domain="com.microsoft",
        K=COLUMNS, N=ROWS, bits=scheme.bits, block_size=scheme.group, accuracy_level=level,
    )  # fmt: skip
    initializers = [
        helper.make_tensor("codes", TensorProto.UINT8, codes.shape, codes.tobytes(), raw=True),
        helper.make_tensor("scales", TensorProto.FLOAT, scales.shape, scales.tobytes(), raw=True),
    ]
    described = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [None, size]) for n, size in
                 (("x", COLUMNS), ("y", ROWS))]  # fmt: skip
    graph = helper.make_graph([node], "one", described[:1], described[1:], initializers)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]


@pytest.mark.parametrize("massive", [1.0, 1000.0])
@pytest.mark.parametrize("level", [0, 4])
@pytest.mark.parametrize("name", ["int4-g32-sym", "int4-g64-sym", "int4-g128-sym", "int8-g32-sym"])
def test_q3_the_kernel_equals_numpy_in_every_block_size(name: str, level: int, massive: float) -> None:
    """One activation channel times a thousand is what models have; it may spoil its own block and no other."""
    scheme = payload.parse_scheme(name)
    assert scheme is not None
    draw = np.random.default_rng(scheme.group)
    groups = scheme.groups(COLUMNS)
    q = draw.integers(0, 1 << scheme.bits, (ROWS, groups, scheme.group)).astype(np.uint8)
    scales = draw.uniform(0.5, 1.5, (ROWS, groups)).astype(np.float32) / scheme.zero
    codes = q if scheme.bits == 8 else (q[..., ::2] + 16 * q[..., 1::2]).astype(np.uint8)
    weight = (q.astype(np.float64) - scheme.zero) * scales[..., None]
    x = draw.standard_normal((3, COLUMNS)).astype(np.float32)
    x[:, 700] *= massive
    expected = x.astype(np.float64) @ weight.reshape(ROWS, COLUMNS).T
    found = matmul(x, codes, scales, scheme, level)
    # int8 rounds each activation to a 127th of the largest of its block: at most half a step each, mostly cancelling.
    blocks = np.abs(x).reshape(3, groups, 1, scheme.group)
    steps = blocks.max(-1, keepdims=True) / 127
    rounding = np.sqrt((steps**2 / 12 * (weight**2).transpose(1, 0, 2)[None]).sum((1, 3)))
    limit = 5 * rounding if level == 4 else np.abs(x) @ np.abs(weight.reshape(ROWS, COLUMNS)).T * 1e-6
    assert np.all(np.abs(found - expected) < limit)
    assert np.abs(expected).max() > 10  # not the zeros of a block size that falls through


def test_n29_an_interrupt_while_buffers_are_bound_leaves_none_of_another_shape(bundle: Bundle) -> None:
    """A step of one token, an interrupted one of five in another sequence, and again one: bound is what it needs."""
    layout = plan_layout(bundle.spec, 32, sequences=2)
    with closing(open_runtime(bundle, layout, RuntimeOptions(runtime="onnx", threads=1))) as runtime:
        pools = Pools(layout, extents=True)
        first, second = (Session(runtime, pools) for _ in range(2))
        first.feed([5, 6, 7])
        expected = first.step([8])
        line, more = 0, True
        while more:
            line += 1
            first.align([5, 6, 7, 8])
            first.step([8])
            more = interrupted_at(line, partial(second.step, [9, 10, 11, 12, 13]))
            second.reset()
            first.align([5, 6, 7, 8])
            assert np.array_equal(first.step([8]), expected), line
        assert line > 50
