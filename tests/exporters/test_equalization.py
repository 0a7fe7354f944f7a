"""Equalization: what it makes of planted channels, the float model's logits, and what an int8 cache gains by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.torch import load_file, save_file

import edge
from edge import graph as graphs
from edge.bundle import Bundle
from edge.layers import Gqa
from edge.runtime import support
from exporters import equalization
from exporters.architectures import Model, describe
from exporters.architectures.views import View
from exporters.checkpoint import Checkpoint
from exporters.parity import compare, run_graph, source_reader
from exporters.payload_writer import Plan
from exporters.quant.recipe import Choice
from exporters.reference import Reference
from exporters.report import costs
from tests.exporters import tiny
from tests.exporters.test_reference import random_ids

Opener = Callable[[Path], Checkpoint]
FAMILIES = {
    "llama": tiny.tiny_llama, "biases": lambda folder: tiny.tiny_llama(folder, attention_bias=True),
    "qwen2": tiny.tiny_qwen2, "qwen3": tiny.tiny_qwen3, "gemma2": tiny.tiny_gemma2, "gemma3": tiny.tiny_gemma3,
    "phi3": tiny.tiny_phi3, "smollm3": tiny.tiny_smollm3, "olmo2": tiny.tiny_olmo2, "granite": tiny.tiny_granite,
    "olmoe": tiny.tiny_olmoe,
}  # fmt: skip
NORMED = ("qwen3", "gemma3", "olmo2", "olmoe")  # queries and keys have norms of their own


def plans_of(model: Model, method: str = "nearest") -> dict[str, Plan]:
    weights = graphs.build(model.spec).weights
    return {
        weight.name: Plan(model.weights[weight.name], Choice.of("int4-g32-sym", method) if weight.is_matrix else
                          Choice.of("float32"))
        for weight in weights
    }  # fmt: skip


def large_biases(model: Model) -> Model:
    """The model with a large constant in some channels of its keys, if it has biases, as it stores them."""
    for name, tensor in model.weights.items():
        if name.endswith("attn.k.bias"):
            bias = tensor.read() + np.where(np.arange(tensor.shape[0]) % 8 == 3, np.float32(300), 0)
            model.weights[name] = Constant(tensor, bias.astype(np.float32))
    return model


@dataclass(frozen=True, slots=True)
class Constant(View):
    values: npt.NDArray[np.float32]

    def read(self, start: int = 0, stop: int | None = None) -> npt.NDArray[np.float32]:
        return self.values[start:stop]


def drawn(attention: Gqa, rotary: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Exponents as a layer may have them: alike in a rotated pair."""
    exponents = rng.integers(-3, 6, (attention.kv_heads, attention.head_dim))
    if attention.rope is not None:
        exponents[:, rotary // 2 : rotary] = exponents[:, : rotary // 2]
    return exponents


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in NORMED])
def test_k8_the_float_model_keeps_its_logits(family: str, tmp_path: Path, opened: Opener) -> None:
    model = describe(opened(FAMILIES[family](tmp_path / "model")))
    graph, rng = graphs.build(model.spec), np.random.default_rng(0)
    exponents = {}
    for index, layer in enumerate(model.spec.layers):
        assert isinstance(layer.attention, Gqa)
        rope = layer.attention.rope
        exponents[index] = drawn(layer.attention, 0 if rope is None else model.spec.ropes[rope].dim, rng)
    changed = equalization.apply(plans_of(model), equalization.factors(graph, exponents))
    names = {name.split(".", 2)[2] for name, plan in changed.items() if plan.source is not model.weights[name]}
    biased = model.spec.layers[0].attention.qkv_bias
    assert names == {"attn.q", "attn.k", *(["attn.q.bias", "attn.k.bias"] if biased else [])}
    ids = random_ids(24)
    expected = Reference(graph, source_reader(model.weights)).run(ids)
    found = Reference(graph, source_reader({name: plan.source for name, plan in changed.items()})).run(ids)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("family", [*FAMILIES, "latents"])
def test_k8_only_constants_of_keys_without_a_norm_are_looked_for(family: str, tmp_path: Path, opened: Opener) -> None:
    make = tiny.tiny_deepseek_v2 if family == "latents" else FAMILIES[family]
    model = describe(opened(make(tmp_path / "model")))
    graph = graphs.build(model.spec)
    assert equalization.find(graph, plans_of(model)) == {}
    found = equalization.find(graph, plans_of(large_biases(model)))
    assert bool(found) == (family in ("biases", "qwen2"))
    for exponents in found.values():
        assert set(np.flatnonzero(exponents[0] > 0)) == {3, 11}  # of 16 channels: a pair, and both have the constant


def planted(folder: Path, factor: float = 32.0) -> Path:
    """A Qwen2 whose first layer has a bias of the keys that is far above everything else, in a pair of one head."""
    source = tiny.tiny_qwen2(folder)
    weights = load_file(source / "model.safetensors")
    keys = weights["model.layers.0.self_attn.k_proj.weight"] * weights["model.layers.0.input_layernorm.weight"]
    bias = weights["model.layers.0.self_attn.k_proj.bias"]
    bias *= 0
    for row in (16 + 7, 16 + 15):  # of the second head of keys
        bias[row] = factor * keys[16:].norm(dim=1).mean()
        weights["model.layers.0.self_attn.q_proj.weight"][[32 + row - 16, 48 + row - 16]] /= factor
        weights["model.layers.0.self_attn.q_proj.bias"][[32 + row - 16, 48 + row - 16]] /= factor
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    return source


def test_k8_planted_channels_are_found_and_others_left_alone(tmp_path: Path, opened: Opener) -> None:
    model = describe(opened(planted(tmp_path / "model")))
    graph = graphs.build(model.spec)
    found = equalization.find(graph, plans_of(model))
    assert list(found) == [0]
    np.testing.assert_array_equal(np.argwhere(found[0]), [[1, 7], [1, 15]])
    assert found[0][1, 7] == found[0][1, 15] == 5  # 2⁵ = 32
    factors = equalization.factors(graph, found)
    bias = model.weights["layers.0.attn.k.bias"].read()
    assert factors["layers.0.attn.k.bias"][23] * bias[23] == bias[23] / 32
    query = factors["layers.0.attn.q"]  # two heads of queries share each head of keys
    assert [query[row] for row in (32 + 7, 48 + 15)] == [32, 32]
    assert equalization.find(graph, plans_of(model, "carry")) == {}


def test_k8_a_head_of_zeros_and_numbers_that_are_none_are_left_alone(tmp_path: Path, opened: Opener) -> None:
    source = planted(tmp_path / "model")
    weights = load_file(source / "model.safetensors")
    weights["model.layers.0.self_attn.k_proj.weight"][:16] *= 0
    weights["model.layers.1.self_attn.k_proj.weight"][0] = float("inf")
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    model = describe(opened(source))
    found = equalization.find(graphs.build(model.spec), plans_of(model))
    assert list(found) == [0]
    assert not found[0][0].any()


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Bundle, Bundle]:
    """The planted model's source, and its bundle without and with equalization."""
    folder = tmp_path_factory.mktemp("planted")
    source, text = planted(folder / "model"), folder / "own.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 80, encoding="utf-8")
    recipe = folder / "recipe.toml"
    recipe.write_text('[[rule]]\nmatch = "*"\nscheme = "int8-g32-sym"\nmethod = "nearest"\n', encoding="utf-8")
    options: Any = {"recipe": recipe, "targets": ()}
    plain = edge.export(source, folder / "plain.dsedge", effort="none", **options)
    return source, plain, edge.export(source, folder / "even.dsedge", effort="medium", **options)


def test_k8_a_bundle_keeps_its_codes_and_tells_the_factors(exported: tuple[Path, Bundle, Bundle]) -> None:
    _, plain, even = exported
    assert "equalization" not in plain.manifest.recipe
    assert even.manifest.recipe["equalization"]["0"][1][7] == 5
    for name in ("layers.0.attn.q", "layers.0.attn.k", "layers.0.attn.v"):
        before, after = (bundle.weights.parts(name) for bundle in (plain, even))
        np.testing.assert_array_equal(after["codes"], before["codes"])
    ids = random_ids(40)
    logits = [Reference(bundle.graph, bundle.weights.read).run(ids) for bundle in (plain, even)]
    np.testing.assert_array_equal(*logits)


def test_k8_an_equalized_model_needs_no_wider_cache(exported: tuple[Path, Bundle, Bundle]) -> None:
    """The planted pair makes the first layer a float32 one; afterwards all of it is kept in int8, as close."""
    if not support("native").devices:
        pytest.skip("the native engine is not built here")
    from runtimes.kv_dtypes import kv_dtypes

    _, plain, even = exported
    assert [kv_dtypes(bundle, "int8") for bundle in (plain, even)] == [["float32", "int8"], ["int8", "int8"]]
    ids = random_ids(200)
    expected = Reference(plain.graph, plain.weights.read).run(ids)
    for bundle in (plain, even):
        assert compare(expected, run_graph(bundle, ids, exact=True, runtime="native", kv_dtype="int8")).mean_kl < 3e-3


def test_costs_are_told_against_the_source_with_the_same_factors(
    exported: tuple[Path, Bundle, Bundle], opened: Opener
) -> None:
    """Rows of one matrix alone, with the other's factors missing, would make keys 32 times too small."""
    source, *bundles = exported
    read, ids = source_reader(describe(opened(source)).weights), random_ids(40)
    found = []
    for bundle in bundles:
        own = equalization.reader(read, bundle.graph, bundle.manifest.recipe)
        found.append(costs.find(bundle.graph, own, bundle.weights.read, ids, lambda *_: None))
    assert found[0] is not None
    assert found[0] == found[1]
