"""Weights in runs of rows or columns with a scheme each: written, and read by every reader as an own unpacker does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import edge
from edge.bundle import Bundle
from edge.errors import BundleError, FormatError
from edge.ops import Weight
from edge.payload import Layout, Scheme
from edge.weights import Weights
from exporters import parity, payload_writer
from exporters.architectures.names import HUGGING_FACE, source_name
from exporters.parity import compare
from exporters.payload_writer import Plan, write_weights
from exporters.quant.recipe import Choice, Recipe
from exporters.reference import Reference
from tests.exporters.test_payload_writer import make_graph, make_sources
from tests.exporters.tiny import load_reference, tiny_llama, tiny_qwen2
from tests.exporters.unpacker import unpack_weight

# The graph has 40 tokens, a width of 48, q of [64, 48], o of [48, 64], an MLP of 64.
LAYOUTS = {
    "embed": "columns 16 float16, 32 int8-g32-sym",
    "layers.0.attn.q": "rows 32 int8-g32-sym, 32 int4-g32-sym",
    "layers.0.attn.k": "rows 16 int4-g64-zp, 8 int4-g32-sym, 8 int8-g32-sym",
    "layers.0.attn.o": "columns 32 int4-g32-zp, 32 int8-g32-sym",
    "layers.0.mlp.gate": "rows 1 float16, 63 int4-g32-affine",
    "layers.0.mlp.down": "columns 20 int4-g32-sym, 44 int4-g128-affine",
}
# What holds all runs of each exactly, for a reader that wants one scheme.
HELD = {"layers.0.attn.q", "layers.0.attn.k", "layers.0.attn.o"}


def written(path: Path, **sources: Any) -> Weights:
    graph = make_graph()
    found = make_sources(graph)
    layouts = {w.name: LAYOUTS.get(w.name, "float32" if len(w.shape) == 1 else "int4-g32-sym") for w in graph.weights}
    choices = {name: Choice(Layout.parse(text), ("nearest",) * (text.count(",") + 1)) for name, text in layouts.items()}
    for name, (scheme, choice) in sources.items():
        found[name].scheme, choices[name] = scheme, choice
    write_weights(path, graph, {name: Plan(found[name], choices[name]) for name in choices}, lambda share: None)
    return Weights(path, graph.weights, {name: str(choice.layout) for name, choice in choices.items()})


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Weights:
    """In blocks of a few rows, so that every run is written in pieces."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(payload_writer, "_ENCODED_NUMBERS", 200)
        return written(tmp_path_factory.mktemp("runs") / "w")


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_way_of_reading_gives_the_numbers_of_an_own_unpacker(name: str, weights: Weights) -> None:
    rows, columns = weights.shapes[name]
    expected = unpack_weight(weights.path, name, LAYOUTS[name], (rows, columns))
    source = make_sources(make_graph())[name].values
    assert np.abs(expected - source).max() < 0.6  # half a step of the coarsest group
    np.testing.assert_allclose(weights.read(name), expected, rtol=1e-6, atol=1e-6)
    for start, stop in ((0, 1), (5, 33), (rows - 3, rows + 9), (0, 0), (7, 7)):
        np.testing.assert_allclose(weights.read(name, start, stop), expected[start:stop], rtol=1e-6, atol=1e-6)
    scheme = weights.schemes[name]
    assert (scheme == Scheme(8, 32, "sym")) == (name in HELD)
    assert weights.formats[name] == ("int8-g32-sym" if name in HELD else "float32")
    if scheme is None:
        np.testing.assert_allclose(weights.tensor(name, 3, 9), expected[3:9], rtol=1e-6, atol=1e-6)
        return
    for start, stop in ((0, rows), (5, 33)):
        parts = weights.parts(name, start, stop)
        assert {part: found.shape[1:] for part, found in parts.items()} == {
            part: shape[1:] for part, (_, shape) in scheme.parts(rows, columns).items()
        }
        groups = parts["scales"].astype(np.float64).repeat(32, axis=1)[:, :columns]
        np.testing.assert_array_equal(groups * (parts["codes"][:, :columns].astype(int) - 128), expected[start:stop])
        assert (parts["codes"][:, columns:] == 128).all()  # padding stands for zero


def test_sizes_are_those_of_the_runs(weights: Weights) -> None:
    # q: 32 rows of 64 codes and 2 scales at 8 bits, 32 rows of 32 bytes of codes and 2 scales at 4.
    assert weights.size("layers.0.attn.q") == 32 * (64 + 4) + 32 * (32 + 4)
    assert weights.size("layers.0.attn.q.run1") == 32 * (32 + 4)
    assert (weights.count("layers.0.attn.q"), weights.count("layers.0.attn.q.run1")) == (64 * 48, 32 * 48)
    assert [(run.start, run.stop, run.scheme) for run in weights.runs["layers.0.mlp.down"]] == [
        (0, 20, "int4-g32-sym"), (20, 64, "int4-g128-affine"),
    ]  # fmt: skip


@pytest.mark.parametrize(("kind", "bits"), [("sym", 8), ("affine", 4), ("zp", 4)])
def test_codes_are_carried_by_rows_and_by_whole_groups_of_columns(kind: Any, bits: int, tmp_path: Path) -> None:
    scheme = Scheme(bits, 32, kind)
    o = Choice(Layout.parse(f"columns 32 {scheme.name}, 32 float16"), ("carry", "nearest"))
    q = Choice(Layout.parse(f"rows 32 float32, 32 {scheme.name}"), ("nearest", "carry"))
    weights = written(tmp_path / "w", **{"layers.0.attn.o": (scheme, o), "layers.0.attn.q": (scheme, q)})
    plain = written(tmp_path / "p", **{
        "layers.0.attn.o": (scheme, Choice.of(scheme.name, "carry")),
        "layers.0.attn.q": (scheme, Choice.of(scheme.name, "carry")),
    })  # fmt: skip
    source = make_sources(make_graph())
    whole = plain.read("layers.0.attn.o")
    np.testing.assert_array_equal(weights.read("layers.0.attn.o")[:, :32], whole[:, :32])
    np.testing.assert_array_equal(
        weights.read("layers.0.attn.o")[:, 32:], source["layers.0.attn.o"].values[:, 32:].astype(np.float16)
    )
    np.testing.assert_array_equal(weights.read("layers.0.attn.q")[32:], plain.read("layers.0.attn.q")[32:])
    np.testing.assert_array_equal(weights.read("layers.0.attn.q")[:32], source["layers.0.attn.q"].values[:32])


@pytest.mark.parametrize("text", ["int4-g64-zp", "rows 64 int8-g32-sym, 512 float16", "columns 1 float16, 2 float32"])
def test_a_layout_is_told_as_it_is_read(text: str) -> None:
    assert str(Layout.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "", "int3", "rows", "rows 64", "rows 64 float16", "rows 0 float16, 64 float32", "rows 64 int3, 64 float32",
        "heads 1 float16, 2 float32", "rows 64 float16 64 float32", "rows 64 float16,64 float32",
        "rows -1 float16, 65 float32", "rows 99999999999 float16, 1 float16", "rows ٣ float16, 4 float32",
    ],
)  # fmt: skip
def test_what_is_no_layout(text: str) -> None:
    with pytest.raises(FormatError):
        Layout.parse(text)


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ("rows 32 float32, 31 float32", r"layers\.0\.attn\.q is \[64, 48\]; it cannot be cut into rows 32"),
        ("columns 32 float32, 32 float32", "cannot be cut into columns"),
        ("rows 32 float32, 32 float32", r"tensor 'layers\.0\.attn\.q\.run0' is U8|run0' is missing"),
        ("rows 32 int8-g32-sym, 32 int4-g64-sym", r"run1\.scales' is F16 \[32, 2\], F16 \[32, 1\] is needed"),
    ],
)
def test_a_manifest_that_does_not_fit_the_payload_is_refused(layout: str, words: str, weights: Weights) -> None:
    graph = make_graph()
    kinds = {w.name: LAYOUTS.get(w.name, "float32" if len(w.shape) == 1 else "int4-g32-sym") for w in graph.weights}
    with pytest.raises(BundleError, match=words):
        Weights(weights.path, graph.weights, {**kinds, "layers.0.attn.q": layout})


def test_a_vector_is_not_cut(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="cannot be cut"):
        Layout.parse("rows 4 float32, 4 float32").split("norm", (8,))


# --- a whole model -------------------------------------------------------------------------------------------------

HEADS = """
activation_kl = 1.0
[[rule]]
match = ["layers.0.attn.[qo]", "layers.1.attn.[kv]"]
heads = [1]
scheme = "int8-g32-sym"
[[rule]]
match = ["layers.1.attn.q", "layers.1.attn.o"]
heads = [0, 3]
scheme = "{}"
[[rule]]
match = "*"
scheme = "int4-g32-{}"
"""
# Runs that no recipe names: of an embedding that is the head as well, and of an MLP.
BY_HAND = {
    "embed": "rows 100 int8-g32-sym, 57 float16, 143 int4-g32-affine",
    "layers.0.mlp.down": "columns 32 int4-g32-zp, 160 int8-g32-sym",
    "layers.1.mlp.gate": "rows 64 int4-g32-affine, 128 float16",
    "layers.1.mlp.down": "columns 100 int4-g64-affine, 92 float32",
}
BY_COLUMNS = {**BY_HAND, "embed": "columns 40 int4-g32-affine, 88 float16"}


def check_everywhere(source: Path, made: Bundle) -> None:
    """transformers with the weights of the own unpacker is what the reference, ONNX and the native engine compute."""
    model = load_reference(source)
    state = model.state_dict()
    for weight in made.graph.weights:
        if len(weight.shape) == 2:
            layout = made.manifest.schemes.get(weight.name, "float32")
            found = unpack_weight(made.path / "weights.safetensors", weight.name, layout, weight.shape)
            state[source_name(weight.name, HUGGING_FACE)] = torch.from_numpy(found.astype(np.float32))
    model.load_state_dict(state)
    if made.spec.tied_head:
        model.tie_weights()
    ids = parity.sample_ids(made, 70)
    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits[0].numpy()
    reference = Reference(made.graph, made.weights.read).run(ids)
    assert np.abs(reference - expected).max() < 1e-3
    usable = parity.usable(made)
    assert "onnx" in usable
    for name in usable:
        assert np.abs(parity.run_graph(made, ids, exact=True, runtime=name) - expected).max() < 2e-3, name
        used = compare(expected, parity.run_graph(made, ids, exact=False, runtime=name))
        assert used.mean_kl < 0.1, name


@pytest.mark.parametrize(("wide", "kind"), [("float16", "sym"), ("int4-g32-affine", "zp"), ("int8-g32-sym", "affine")])
@pytest.mark.parametrize("make", [tiny_llama, tiny_qwen2])
def test_bits_by_head_on_every_reader(wide: str, kind: str, make: Any, tmp_path: Path, cache: None) -> None:
    recipe = tmp_path / "heads.toml"
    recipe.write_text(HEADS.format(wide, kind))
    source = make(tmp_path / "source", hidden_size=128, num_attention_heads=4, num_key_value_heads=2)
    made = edge.export(source, tmp_path / "x.dsedge", recipe=recipe)
    base = f"int4-g32-{kind}"
    assert made.manifest.schemes["layers.0.attn.q"] == f"rows 32 {base}, 32 int8-g32-sym, 64 {base}"
    assert made.manifest.schemes["layers.0.attn.o"] == f"columns 32 {base}, 32 int8-g32-sym, 64 {base}"
    assert made.manifest.schemes["layers.1.attn.k"] == f"rows 32 {base}, 32 int8-g32-sym"
    assert made.manifest.schemes["layers.1.attn.q"] == f"rows 32 {wide}, 64 {base}, 32 {wide}"
    assert made.manifest.schemes["layers.0.attn.k"] == base
    assert made.manifest.quality.schemes["int8-g32-sym"].tensors >= 4
    check_everywhere(source, made)


@pytest.mark.parametrize("layouts", [BY_HAND, BY_COLUMNS])
def test_runs_of_any_matrix_on_every_reader(
    layouts: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: None
) -> None:
    choose = Recipe.choose

    def chosen(self: Recipe, weight: Weight, source: Any) -> Choice:
        text = layouts.get(weight.name)
        if text is None:
            return choose(self, weight, source)
        return Choice(Layout.parse(text), ("nearest",) * (text.count(",") + 1))

    monkeypatch.setattr(Recipe, "choose", chosen)
    source = tiny_llama(
        tmp_path / "source", hidden_size=128, intermediate_size=192, num_attention_heads=4, num_key_value_heads=2,
        tie_word_embeddings=True,
    )  # fmt: skip
    made = edge.export(source, tmp_path / "x.dsedge")
    assert {name: made.manifest.schemes[name] for name in layouts} == layouts
    assert made.manifest.quality.parity is not None
    assert made.manifest.quality.parity.total is not None
    check_everywhere(source, made)
