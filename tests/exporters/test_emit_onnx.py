"""The emitted ONNX model: what an ONNX Runtime of somebody else's sees."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import edge
from edge.bundle import Bundle
from edge.rope import angles
from exporters.emit import onnx as emitter
from exporters.emit import onnx_passes
from exporters.emit.onnx_linear import Precision
from exporters.emit.onnx_model import Model
from exporters.parity import Parity
from exporters.reference import Reference
from tests.exporters.tiny import tiny_llama, tiny_qwen2

RECIPE = '[[rule]]\nmatch = "*"\nscheme = "int4-g32-{}"\n'


def export(folder: Path, kind: str = "sym", make: Callable[..., Path] = tiny_llama, **config: Any) -> Bundle:
    (folder / "recipe.toml").write_text(RECIPE.format(kind))
    source = make(folder / "source", **config)
    return edge.export(source, folder / "tiny.dsedge", recipe=folder / "recipe.toml")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Wide enough that the payload of siblings lies without padding between, so that every pass applies."""
    return export(tmp_path_factory.mktemp("wide"), hidden_size=128, num_attention_heads=4, num_key_value_heads=2)


def ops(bundle: Bundle, file: str = "decoder-exact.onnx") -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(bundle.path / file, load_external_data=False).graph.node)


def run_plain(bundle: Bundle, ids: list[int], past: int, cache: dict[str, np.ndarray[Any, Any]]) -> Any:
    """One forward the way that a host without dsedge would do it: feeds in, fresh outputs out."""
    session = onnxruntime.InferenceSession(str(bundle.path / "decoder-exact.onnx"))
    spec, count = bundle.spec, len(ids)
    total = past + count
    feeds: dict[str, Any] = {
        "tokens": np.array([ids], np.int64),
        "angle_rows": np.arange(count, dtype=np.int64)[None],
        "rows": np.arange(count, dtype=np.int64),
        "ring.0.total": np.array(total, np.int32),
        "ring.0.last": np.array([total - 1], np.int32),
        "ring.0.bias": np.zeros((1, 1, count, total), np.float32),
    }
    positions = np.concatenate([np.arange(past, total), np.zeros(past, np.int64)])  # at least `total` rows of angles
    feeds["rope.0.cos"], feeds["rope.0.sin"] = angles(spec.ropes[0], positions)
    for layer, group in enumerate(spec.layer_groups):
        kv = spec.kv_groups[group]
        for part in ("key", "value"):
            name = f"{layer}.{part}"
            empty = np.zeros((1, kv.kv_heads, 0, kv.key_dim), np.float32)
            feeds[f"past.{name}"] = cache.get(name, empty)
    results = dict(zip((o.name for o in session.get_outputs()), session.run(None, feeds), strict=True))
    for name in list(results):
        if name.startswith("present."):
            cache[name.removeprefix("present.")] = results[name]
    return results["logits"][0]


@pytest.mark.parametrize("past", [0, 1, 40])
@pytest.mark.parametrize("count", [1, 7, 8, 33])
def test_o2_any_length_after_any_past(bundle: Bundle, count: int, past: int) -> None:
    ids = [int(i) for i in np.random.default_rng(count).integers(3, 300, past + count)]
    cache: dict[str, np.ndarray[Any, Any]] = {}
    if past:
        run_plain(bundle, ids[:past], 0, cache)
    found = run_plain(bundle, ids[past:], past, cache)
    expected = Reference(bundle.graph, bundle.weights.read).run(ids)[past:]
    assert np.abs(found - expected).max() < 1e-3


def test_o2_symbolic_sizes_agree_between_past_and_present(bundle: Bundle) -> None:
    model = onnx.load(bundle.path / "decoder.onnx", load_external_data=False)
    shapes = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in [*model.graph.input, *model.graph.output]
    }
    assert shapes["tokens"] == [1, "tokens"]
    assert shapes["past.1.key"] == shapes["present.1.key"] == [1, 2, "capacity.0", 32]
    assert shapes["logits"] == [1, "rows", 300]


def test_o1_the_graph_holds_no_weights_and_survives_a_move(bundle: Bundle, tmp_path: Path) -> None:
    for file in ("decoder.onnx", "decoder-exact.onnx"):
        model = onnx.load(bundle.path / file, load_external_data=False)
        size = (bundle.path / "weights.safetensors").stat().st_size
        for tensor in model.graph.initializer:
            if tensor.data_location != onnx.TensorProto.EXTERNAL:
                assert len(tensor.raw_data) <= 64, tensor.name
                continue
            entry = {item.key: item.value for item in tensor.external_data}
            assert entry["location"] == "weights.safetensors"
            assert int(entry["offset"]) % 64 == 0
            assert int(entry["offset"]) + int(entry["length"]) <= size
    moved = tmp_path / "elsewhere" / "moved.dsedge"
    shutil.copytree(bundle.path, moved)
    assert np.isfinite(run_plain(edge.open_bundle(moved), [5, 6], 0, {})).all()


def test_siblings_become_one_matrix_and_rope_goes_into_attention(bundle: Bundle) -> None:
    found = ops(bundle)
    assert found["MatMulNBits"] == 2 * 4 + 1  # qkv, o, gate+up, down; head
    assert found["RotaryEmbedding"] == 0
    assert found["SkipSimplifiedLayerNormalization"] == 4
    assert found["RMSNormalization"] == 1


def test_payload_that_does_not_line_up_is_left_apart(tmp_path: Path) -> None:
    """gate has 40 rows of 2 float16 scales, 160 bytes, so that up's start behind a gap; v follows k in the same way."""
    narrow = export(
        tmp_path, hidden_size=64, num_attention_heads=2, num_key_value_heads=1, head_dim=24, intermediate_size=40
    )
    found = ops(narrow)
    assert found["MatMulNBits"] == 2 * 7 + 1
    assert found["RotaryEmbedding"] == 4
    ids = [5, 6, 7, 8]
    expected = Reference(narrow.graph, narrow.weights.read).run(ids)
    assert np.abs(run_plain(narrow, ids, 0, {}) - expected).max() < 1e-3


def test_biases_are_joined_with_their_matrices(tmp_path: Path) -> None:
    qwen = export(tmp_path, make=tiny_qwen2, hidden_size=128, num_attention_heads=4, num_key_value_heads=2)
    assert ops(qwen)["RotaryEmbedding"] == 0
    ids = [5, 6, 7, 8]
    expected = Reference(qwen.graph, qwen.weights.read).run(ids)
    assert np.abs(run_plain(qwen, ids, 0, {}) - expected).max() < 1e-3


@pytest.mark.parametrize("kind", ["sym", "affine"])
@pytest.mark.parametrize("width", [128, 100])
def test_q3_int8_activations_are_close_and_int16_ones_all_but_exact(kind: str, width: int, tmp_path: Path) -> None:
    draft = export(tmp_path, kind, make=tiny_qwen2, hidden_size=width, num_attention_heads=4, head_dim=16)
    parity = Parity(draft, tokens=40)
    found = {}
    precisions: tuple[Precision, ...] = ("int8", "int16", "float")
    for precision in precisions:
        info = emitter.emit(
            draft.graph, draft.weights, draft.path / "decoder.onnx", precision=lambda op, p=precision: p
        )
        assert set(info.precision.values()) == {precision}
        found[precision] = parity.used(draft, "onnx")
    assert found["float"].max_diff < 1e-3
    assert found["int16"].max_diff < found["int8"].max_diff / 30
    assert 1e-4 < found["int8"].mean_kl < 0.5


def test_model_verify_refuses_what_is_not_sound() -> None:
    model = Model("test")
    model.inputs["x"] = (1, (1,))
    model.add("Relu", ("missing",), "y")
    with pytest.raises(AssertionError, match="before it is defined"):
        model.verify()
    model.nodes.clear()
    model.add("Relu", ("x",), "y")
    model.add("Relu", ("x",), "y")
    with pytest.raises(AssertionError, match="defined twice"):
        model.verify()
    model.nodes.pop()
    model.outputs["z"] = (1, (1,))
    with pytest.raises(AssertionError, match="undefined outputs"):
        onnx_passes.run(model)
