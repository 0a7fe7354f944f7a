"""Keys and values in int8: how close, the same bits however they came to be kept, and what other runtimes say."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.torch import load_file, save_file

import edge
from edge.bundle import Bundle
from edge.errors import OptionError, UnsupportedError
from edge.kv import plan_layout, row_bytes
from edge.options import RuntimeOptions
from edge.runtime import open_runtime
from edge.session import Session
from exporters.parity import compare
from exporters.reference import Reference
from runtimes import native
from runtimes.kv_dtypes import kv_dtypes
from runtimes.native.engine import NativeRuntime
from tests.exporters.tiny import tiny_gemma3, tiny_llama, tiny_qwen2
from tests.runtimes.native.kernel_sets import SETS


def random_ids(count: int, seed: int = 0) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(3, 300, count)]


def open_native(bundle: Bundle, slots: int, *, sinks: int = 0, sequences: int = 1, **options: Any) -> NativeRuntime:
    policy: str = "sliding" if sinks else "error"
    layout = plan_layout(bundle.spec, slots, chunk=256, sinks=sinks, sequences=sequences, policy=policy)
    runtime = open_runtime(bundle, layout, RuntimeOptions(runtime="native", **options))
    assert isinstance(runtime, NativeRuntime)
    return runtime


def run(bundle: Bundle, ids: list[int], *, chunk: int = 256, **options: Any) -> npt.NDArray[np.float32]:
    """Logits of every token."""
    runtime = open_native(bundle, len(ids), **options)
    session = Session(runtime)
    found = [session.step(ids[i : i + chunk], "all") for i in range(0, len(ids), chunk)]
    runtime.close()
    return np.concatenate(found)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("kv")
    source = tiny_llama(folder / "source", hidden_size=96, num_attention_heads=6, num_key_value_heads=2, head_dim=24)
    return edge.export(source, folder / "tiny.dsedge")


@pytest.mark.parametrize("kernels", SETS)
def test_int8_comes_close_to_the_reference(kernels: str, bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """With float activations, so that only the cache differs; float32 there is the reference to rounding.

    Attention is peaked and heads are small, so that products of bfloat16 pairs show too.
    """
    monkeypatch.setenv(native.VARIABLE, kernels)
    ids = random_ids(300)
    expected = Reference(bundle.graph, bundle.weights.read).run(ids)
    kls = [
        compare(expected, run(bundle, ids, exact=True, kv_dtype=dtype)).mean_kl
        for dtype in ("float32", "float16", "int8")
    ]
    assert kls[0] < kls[1] < (5e-3 if kernels == "avx512bf16" else 1e-4) < kls[2] < 3e-2


@pytest.mark.parametrize("kernels", SETS)
def test_int8_bits_do_not_depend_on_threads_or_chunks(
    kernels: str, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(native.VARIABLE, kernels)
    ids = random_ids(560)
    expected = run(bundle, ids, threads=1, kv_dtype="int8")
    for threads, chunk in ((3, 256), (1, 7), (4, 1)):
        assert np.array_equal(run(bundle, ids, chunk=chunk, threads=threads, kv_dtype="int8"), expected)


def test_int8_rewinds_and_forks_give_the_bits_of_a_cold_run(bundle: Bundle) -> None:
    """A larger row than any before must not change what is kept of the others."""
    runtime = open_native(bundle, 400, sequences=2, kv_dtype="int8")
    first, tail = random_ids(300), random_ids(60, seed=1)
    session = Session(runtime)
    session.feed(first)
    session.feed(random_ids(40, seed=2))  # overwritten below
    session.align(first[:250] + tail)
    rewound = session.step(tail, "all")
    forked = session.fork()
    session.feed(random_ids(20, seed=3))
    assert np.array_equal(rewound, run(bundle, first[:250] + tail, kv_dtype="int8")[250:])
    onward = random_ids(9, seed=4)
    assert np.array_equal(forked.step(onward, "all"), run(bundle, first[:250] + tail + onward, kv_dtype="int8")[310:])
    runtime.close()


def test_int8_sinks_turn_from_what_was_kept_first(bundle: Bundle) -> None:
    """Turning again and again from the turned would add up roundings; from the first copy, one turn is like many."""
    ids = random_ids(120)
    found = []
    for dtype in ("float32", "int8"):
        runtime = open_native(bundle, 40, sinks=4, exact=True, kv_dtype=dtype)
        session = Session(runtime)
        found.append(np.concatenate([session.step([token], "all") for token in ids]))
        runtime.close()
    assert compare(*found).mean_kl < 1e-2
    early, late = (compare(*(logits[part] for logits in found)).mean_kl for part in (slice(0, 40), slice(80, 120)))
    assert late < 4 * early


def k_biases(folder: Path, change: Any) -> Bundle:
    """A Qwen2 in float32 whose first layer's key bias is changed."""
    source = tiny_qwen2(folder / "source")
    weights = load_file(source / "model.safetensors")
    change(weights["model.layers.0.self_attn.k_proj.bias"])
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    (folder / "recipe.toml").write_text('[[rule]]\nmatch = "*"\nscheme = "float32"\n')
    return edge.export(source, folder / "tiny.dsedge", recipe=folder / "recipe.toml")


def test_k8_layers_with_large_key_biases_are_kept_wider(tmp_path: Path) -> None:
    """Two channels at 100 in one head: int8 for all of it agrees on half of the tokens."""

    def change(bias: Any) -> None:
        bias[7], bias[15] = 100, -100

    bundle = k_biases(tmp_path, change)
    ids = random_ids(300)
    expected = run(bundle, ids, exact=True)
    for dtype in ("float16", "int8"):
        found = compare(expected, run(bundle, ids, exact=True, kv_dtype=dtype))
        assert (found.mean_kl < 5e-3, found.top1 > 0.95) == (True, True)
        assert kv_dtypes(bundle, dtype) == ["float32", dtype]
    assert kv_dtypes(bundle, "float32") == ["float32", "float32"]


def uneven_keys(folder: Path, factor: float) -> Bundle:
    """A Llama in float32: in its first layer two channels of keys are that much larger, those of queries smaller."""
    source = tiny_llama(folder / "source")
    weights = load_file(source / "model.safetensors")
    name = "model.layers.0.self_attn.{}_proj.weight"
    for row in (7, 15):  # which a rope rotates into each other: their products with the queries stay
        weights[name.format("k")][row] *= factor
        weights[name.format("q")][[row, 16 + row]] /= factor
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    (folder / "recipe.toml").write_text('[[rule]]\nmatch = "*"\nscheme = "float32"\n')
    return edge.export(source, folder / "tiny.dsedge", recipe=folder / "recipe.toml")


@pytest.mark.parametrize("factor", [3, 10, 30])
def test_n30_layers_with_outlying_keys_and_no_bias_are_kept_wider(factor: int, tmp_path: Path) -> None:
    """In int8 for all of it, 0.91, 0.85 and 0.62 of the tokens are those of float32."""
    bundle = uneven_keys(tmp_path, factor)
    assert kv_dtypes(bundle, "int8") == ["float16", "int8"]
    assert kv_dtypes(bundle, "float16") == ["float16", "float16"]
    ids = random_ids(300)
    expected = run(bundle, ids, exact=True)
    half, int8 = (compare(expected, run(bundle, ids, exact=True, kv_dtype=dtype)) for dtype in ("float16", "int8"))
    assert int8.top1 > half.top1 - 0.02
    assert int8.mean_kl < half.mean_kl + 1e-3


def test_n30_even_keys_stay_in_int8(tmp_path: Path) -> None:
    assert kv_dtypes(uneven_keys(tmp_path, 1), "int8") == ["int8", "int8"]


def test_n39_keys_of_zeros_cause_no_warning(tmp_path: Path) -> None:
    """A layer whose matrices are zero keeps nothing that rounding could cost."""
    source = tiny_llama(tmp_path / "source")
    weights = load_file(source / "model.safetensors")
    for name in ("q_proj", "k_proj"):
        weights[f"model.layers.1.self_attn.{name}.weight"] *= 0
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bundle = edge.export(source, tmp_path / "tiny.dsedge", targets=())
        assert kv_dtypes(bundle, "int8") == ["int8", "int8"]


def test_k8_ordinary_biases_and_norms_stay_in_int8(bundle: Bundle, tmp_path: Path) -> None:
    assert kv_dtypes(bundle, "int8") == ["int8", "int8"]
    assert kv_dtypes(k_biases(tmp_path, lambda bias: bias.mul_(5)), "int8") == ["int8", "int8"]
    gemma = edge.export(tiny_gemma3(tmp_path / "gemma"), tmp_path / "gemma.dsedge")
    assert set(kv_dtypes(gemma, "int8")) == {"int8"}


def test_memory_is_as_estimated(bundle: Bundle) -> None:
    """2 kv heads of 24 numbers (values padded to 32), in 2 layers; rows go by blocks, heads by 64 bytes."""
    rows = 64  # a block
    for dtype, size in (("float16", 2 * (24 + 32)), ("int8", 24 + 32 + 4)):
        runtime = open_native(bundle, 64, kv_dtype=dtype)
        assert runtime.kv_bytes == 2 * 2 * rows * size
        runtime.close()
    (kv,) = bundle.spec.kv_groups
    assert row_bytes(kv, "int8") == 2 * 2 * (24 + 2)
    assert row_bytes(kv, "float16") == 2 * 2 * 24 * 2
    with pytest.raises(OptionError, match="kv_dtype is 'int4'; it must be one of float32, float16, int8"):
        row_bytes(kv, "int4")


def test_other_runtimes_refuse_int8(bundle: Bundle) -> None:
    layout = plan_layout(bundle.spec, 8)
    with pytest.raises(UnsupportedError, match="runtime onnx offers kv_dtype float32, not int8"):
        open_runtime(bundle, layout, RuntimeOptions(runtime="onnx", kv_dtype="int8"))
    with pytest.raises(UnsupportedError, match="runtime native offers kv_dtype float16, int8, not float32"):
        open_runtime(bundle, layout, RuntimeOptions(runtime="native", kv_dtype="float32"))
    with pytest.raises(OptionError, match="kv_dtype is 'q8_0'"):
        RuntimeOptions(kv_dtype="q8_0")  # type: ignore[arg-type]
