"""Quantizing methods: the table, what they are given, and statistics that one needs and nobody collected."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from edge.errors import FormatError, OptionError
from edge.payload import Scheme
from edge.weights import Weights
from exporters.payload_writer import Plan, write_weights
from exporters.quant import method
from exporters.quant.method import Statistics
from exporters.quant.recipe import Choice
from tests.exporters.test_payload_writer import make_choices, make_graph, make_sources


def with_method(monkeypatch: pytest.MonkeyPatch, needs: tuple[str, ...]) -> list[Any]:
    """A method `loud` in the table that makes every code its row's number; what it was called with."""
    calls: list[Any] = []
    module: Any = ModuleType("loud")
    module.NEEDS = needs

    def quantize(weight: Any, scheme: Scheme, statistics: Statistics | None) -> dict[str, Any]:
        rows = weight.read()
        calls.append((rows, scheme, statistics))
        parts = {
            name: np.zeros(shape, {"U8": np.uint8, "F16": np.float16}[dtype])
            for name, (dtype, shape) in scheme.parts(*rows.shape).items()
        }
        parts["scales"] += np.float16(1)
        parts["codes"] += np.uint8(0x99)  # two nibbles of 9
        return parts

    module.quantize = quantize
    monkeypatch.setitem(sys.modules, "loud", module)
    monkeypatch.setitem(method.METHODS, "loud", "loud")
    return calls


def test_a_method_of_the_table_makes_the_codes_of_its_weight_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = with_method(monkeypatch, ("mean_square",))
    graph = make_graph()
    sources, choices = make_sources(graph), make_choices(graph)
    choices["head"] = Choice.of("int4-g64-sym", "loud")
    seen = Statistics(10, mean_square=np.arange(48, dtype=np.float32))
    plans = {name: Plan(sources[name], choices[name], seen if name == "head" else None) for name in choices}
    write_weights(tmp_path / "w", graph, plans, lambda share: None)
    weights = Weights(tmp_path / "w", graph.weights, {name: str(choice.layout) for name, choice in choices.items()})
    np.testing.assert_array_equal(weights.read("head"), np.ones((40, 48)))
    assert np.abs(weights.read("layers.0.mlp.up") - sources["layers.0.mlp.up"].values).max() < 0.3
    ((rows, scheme, statistics),) = calls
    np.testing.assert_array_equal(rows, sources["head"].values)
    assert (scheme, statistics) == (Scheme(4, 64, "sym"), seen)


@pytest.mark.parametrize("statistics", [None, Statistics(10, mean_square=np.ones(48, np.float32))])
def test_a_method_whose_statistics_are_lacking_says_so_before_anything_is_written(
    statistics: Statistics | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_method(monkeypatch, ("moment",))
    graph = make_graph()
    sources, choices = make_sources(graph), make_choices(graph)
    choices["layers.0.attn.q"] = Choice.of("int4-g32-sym", "loud")
    plans = {name: Plan(sources[name], choices[name], statistics) for name in choices}
    with pytest.raises(OptionError, match=r"method loud needs calibration statistics of layers\.0\.attn\.q \(moment\)"):
        write_weights(tmp_path / "w", graph, plans, lambda share: None)
    assert not (tmp_path / "w").exists()


def test_an_unknown_method_names_the_known_ones() -> None:
    with pytest.raises(OptionError, match="unknown method 'gptq2'; known are nearest, carry, gptq"):
        method.find("gptq2")
    needs = {name: method.find(name).NEEDS for name in method.METHODS}
    assert needs == {"nearest": (), "carry": (), "gptq": ("moment",), "heads": ("moment", "heads")}


def test_n40_matrices_of_zeros_are_told(tmp_path: Path) -> None:
    graph = make_graph()
    sources, choices = make_sources(graph), make_choices(graph)
    for name in ("head", "layers.0.mlp.up", "layers.0.attn.q.bias"):
        sources[name].values[...] = 0
    sources["layers.0.mlp.up"].values[-1, -1] = 1e-3
    sources["layers.0.mlp.down"].values[...] = 0
    sources["layers.0.mlp.down"].scheme = Scheme(4, 32, "affine")
    choices["layers.0.mlp.down"] = Choice.of("int4-g32-affine", "carry")
    plans = {name: Plan(sources[name], choices[name]) for name in choices}
    assert write_weights(tmp_path / "w", graph, plans, lambda share: None) == ("layers.0.mlp.down", "head")


def test_a_choice_that_does_not_fit_its_weight_is_refused() -> None:
    with pytest.raises(FormatError, match=r"w is \[8, 8\]; it cannot be cut into rows 4 float16, 2 float32"):
        Choice.of("float16").layout.parse("rows 4 float16, 2 float32").split("w", (8, 8))
