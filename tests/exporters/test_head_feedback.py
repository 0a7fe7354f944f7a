"""Feedback within heads: the moments of partners against rotated vectors, and the error of scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import edge
from edge import graph as graphs
from edge import rope
from edge.layers import Gqa
from edge.ops import Weight
from exporters import payload_writer
from exporters.architectures import Model, describe
from exporters.calibration import heads as partners
from exporters.checkpoint import Checkpoint
from exporters.parity import source_reader
from exporters.quant import gptq, heads
from tests.exporters import tiny
from tests.exporters.test_gptq import moment, numbers
from tests.exporters.test_rtn import NAMES, scheme, weights

Array = npt.NDArray[np.float64]
Opener = Callable[[Path], Checkpoint]


def group_of(model: Model, layer: int = 0) -> list[Weight]:
    """q, k and v of a layer."""
    graph = graphs.build(model.spec)
    return [weight for weight in graph.weights if weight.is_matrix and weight.name.startswith(f"layers.{layer}.attn.")][
        :3
    ]


def turned(model: Model, vectors: Array, positions: int, sign: int) -> Array:
    """The mean of the outer products of vectors [heads, tokens, dim], each rotated by 0, 1, … positions."""
    attention = model.spec.layers[0].attention
    assert isinstance(attention, Gqa)
    found = np.zeros((len(vectors), vectors.shape[2], vectors.shape[2]))
    if attention.rope is None:
        return np.einsum("hti,htj->hij", vectors, vectors) / vectors.shape[1]
    frequencies = rope.inverse_frequencies(model.spec.ropes[attention.rope])
    half = len(frequencies)
    for position in range(positions):
        cos, sin = np.cos(position * frequencies), sign * np.sin(position * frequencies)
        a, b = vectors[..., :half], vectors[..., half : 2 * half]
        moved = vectors.copy()
        moved[..., :half], moved[..., half : 2 * half] = a * cos - b * sin, a * sin + b * cos
        found += np.einsum("hti,htj->hij", moved, moved) / vectors.shape[1]
    return found / positions


@pytest.mark.parametrize("rotated", [16, 8, 0])
def test_moments_are_those_of_partners_at_all_distances(
    rotated: int, tmp_path: Path, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partners, "DISTANCES", 7)
    model = describe(opened(tiny.tiny_llama(tmp_path / "model")))
    layers = tuple(
        replace(layer, attention=replace(layer.attention, rope=0 if rotated else None)) for layer in model.spec.layers
    )
    ropes = tuple(replace(item, dim=rotated or 16) for item in model.spec.ropes)
    model = replace(model, spec=replace(model.spec, layers=layers, ropes=ropes))
    group, read = group_of(model), source_reader(model.weights)
    inputs = np.random.default_rng(0).normal(size=(50, 64)) @ np.random.default_rng(1).normal(size=(64, 64))
    h = np.asarray(inputs.T @ inputs / len(inputs), np.float32)
    found = partners.moments(graphs.build(model.spec), group, h, read)
    assert set(found) == {"layers.0.attn.q", "layers.0.attn.k"}
    queries, keys = ((inputs @ read(w.name, 0, None).T).reshape(50, -1, 16).transpose(1, 0, 2) for w in group[:2])
    met = np.repeat(turned(model, keys, 7, -1), 2, axis=0)  # two heads of queries share one of keys
    np.testing.assert_allclose(found["layers.0.attn.q"], met, rtol=1e-3, atol=1e-3 * np.abs(met).max())
    meets = turned(model, queries, 7, 1).reshape(2, 2, 16, 16).sum(axis=1)
    np.testing.assert_allclose(found["layers.0.attn.k"], meets, rtol=1e-3, atol=1e-3 * np.abs(meets).max())


def test_a_norm_of_keys_takes_their_size_away_and_has_a_weight(tmp_path: Path, opened: Opener) -> None:
    model = describe(opened(tiny.tiny_qwen3(tmp_path / "model")))
    graph, group, read = graphs.build(model.spec), group_of(model), source_reader(model.weights)
    h = moment(group[0].shape[1])

    def found(factors: dict[str, float]) -> Any:
        return partners.moments(
            graph, group, h, lambda name, *part: read(name, *part) * np.float32(factors.get(name, 1))
        )

    plain, larger = found({}), found({"layers.0.attn.k": 8.0})
    np.testing.assert_allclose(larger["layers.0.attn.q"], plain["layers.0.attn.q"], rtol=1e-3, atol=1e-3)
    normed = found({"layers.0.attn.k_norm": 3.0})
    np.testing.assert_allclose(normed["layers.0.attn.q"], 9 * plain["layers.0.attn.q"], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(normed["layers.0.attn.k"], 9 * plain["layers.0.attn.k"], rtol=1e-3, atol=1e-3)


def test_other_groups_have_no_partners(tmp_path: Path, opened: Opener) -> None:
    model = describe(opened(tiny.tiny_deepseek_v2(tmp_path / "model")))
    graph = graphs.build(model.spec)
    for op in graph.siblings:
        matrices = [item.attrs.weight for item in op]
        assert partners.moments(graph, matrices, moment(matrices[0].shape[1]), source_reader(model.weights)) == {}


@pytest.mark.parametrize("name", NAMES)
def test_scores_change_less_than_by_feedback_within_rows(name: str) -> None:
    kind, w, objective = scheme(name), weights(48, 96), gptq.Objective.of(moment(96))
    met = np.stack([moment(24, seed) for seed in (5, 6)])  # of two heads of 24 rows

    def cost(parts: gptq.Parts) -> float:
        error = (w - numbers(kind, parts, 96)).reshape(2, 24, 96)
        return float(np.einsum("hij,hic,cd,hjd->", met, error, objective.moment, error, optimize=True))

    found = heads.encode(kind, w, objective, met)
    assert {part: (values.shape, values.dtype) for part, values in found.items()} == {
        part: (values.shape, values.dtype) for part, values in gptq.encode(kind, w, objective).items()
    }
    assert cost(found) < 0.75 * cost(gptq.encode(kind, w, objective))


def test_rows_that_have_nothing_in_common_are_those_of_feedback_within_rows() -> None:
    kind, w, objective = scheme("int4-g32-sym"), weights(48, 96), gptq.Objective.of(moment(96))
    apart = np.stack([np.diag(np.arange(1, 25)).astype(np.float32), np.zeros((24, 24), np.float32)])
    found, expected = heads.encode(kind, w, objective, apart), gptq.encode(kind, w, objective)
    assert (found["codes"] == expected["codes"]).mean() > 0.999


def test_an_export_takes_whole_heads_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of few rows, and heads of another scheme, which are a run of their own: each gets its own moments."""
    source, text = tiny.tiny_llama(tmp_path / "model"), tmp_path / "own.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 80, encoding="utf-8")
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        '[[rule]]\nmatch = "layers.0.attn.q"\nheads = [1]\nscheme = "int8-g32-sym"\nmethod = "heads"\n'
        '[[rule]]\nmatch = "*"\nscheme = "int4-g32-sym"\nmethod = "heads"\n', encoding="utf-8",
    )  # fmt: skip
    made = []
    for numbers_at_once in (1 << 21, 1 << 10):
        monkeypatch.setattr(payload_writer, "_ENCODED_NUMBERS", numbers_at_once)
        out = tmp_path / f"{numbers_at_once}.dsedge"
        made.append(edge.export(source, out, recipe=recipe, effort="medium", calibration=text, targets=()))
    assert [run.scheme for run in made[0].weights.runs["layers.0.attn.q"]] == [
        "int4-g32-sym", "int8-g32-sym", "int4-g32-sym",
    ]  # fmt: skip
    for name in ("layers.0.attn.q", "layers.0.attn.k"):
        whole, parts = (bundle.weights.read(name) for bundle in made)
        assert (whole == parts).mean() > 0.99
