"""Bits by head: what is widened under a limit, and that a recipe with the rules takes the bits that were counted."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from edge import graph as graphs
from edge.errors import OptionError
from exporters.architectures import describe
from exporters.checkpoint.open import open_checkpoint
from exporters.quant import budget, recipe
from exporters.quant.recipe import Choice, Recipe, Rule
from tests.exporters.tiny import tiny_llama


@pytest.fixture(scope="module")
def heads_of_32(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("budget") / "llama", head_dim=32)


class Case:
    """The tiny model under a recipe, and its parts."""

    def __init__(self, folder: Path, *rules: Rule) -> None:
        checkpoint = open_checkpoint(folder)
        try:
            model = describe(checkpoint)
        finally:
            checkpoint.close()
        self.graph, self._sources = graphs.build(model.spec), model.weights
        self.recipe = replace(recipe.load("int4-g32-sym", "gptq"), rules=(*rules, Rule(("*",), "int4-g32-sym")))
        self.choices = self.choose(self.recipe)
        self.parts = list(budget.parts(self.graph, self.choices))

    def choose(self, chosen: Recipe) -> dict[str, Choice]:
        return {w.name: chosen.choose(w, self._sources[w.name]) for w in self.graph.weights}

    def widened(self, costs: list[float], limit: float) -> tuple[tuple[budget.Part, ...], Recipe]:
        found = budget.spend(self.graph, self.choices, list(zip(self.parts, costs, strict=True)), limit)
        rules = budget.rules(found, "gptq")
        return found, replace(self.recipe, rules=(*rules, *self.recipe.rules))


def test_every_matrix_is_in_parts_once(heads_of_32: Path) -> None:
    """Two layers with four heads and two of keys, hidden 64: all numbers of all matrices, none twice."""
    case = Case(heads_of_32)
    seen = {w.name: 0 for w in case.graph.weights if w.is_matrix}
    for part in case.parts:
        for weight in part.weights:
            seen[weight.name] += int(np.prod(part.shape(weight)))
    assert seen == {w.name: w.size for w in case.graph.weights if w.is_matrix}
    told = [(tuple(w.name for w in part.weights), part.head) for part in case.parts]
    assert (("layers.0.attn.q", "layers.0.attn.o"), 3) in told
    assert (("layers.1.attn.k", "layers.1.attn.v"), 1) in told
    assert (("layers.1.mlp.down",), None) in told


def test_what_is_not_in_four_bits_is_left_alone(heads_of_32: Path) -> None:
    case = Case(heads_of_32, Rule(("embed", "head"), "int8-g32-sym"), Rule(("layers.0.attn.q",), "float16"))
    names = {w.name for part in case.parts for w in part.weights}
    assert not names & {"embed", "head", "layers.0.attn.q", "layers.0.attn.o"}  # a head is widened whole or not at all
    assert "layers.1.attn.o" in names


@pytest.mark.parametrize("limit", [4.7, 4.9, 5.5, 8.5])
def test_the_rules_make_what_was_counted_and_keep_the_limit(heads_of_32: Path, limit: float) -> None:
    case = Case(heads_of_32)
    costs = np.random.default_rng(3).uniform(0.1, 1, len(case.parts)).tolist()
    found, widened = case.widened(costs, limit)
    bits = budget.bits(case.graph, case.choose(widened))
    count = sum(w.size for w in case.graph.weights if w.is_matrix)
    assert bits <= limit
    assert bits == pytest.approx(
        budget.bits(case.graph, case.choices) + 8 * sum(part.extra_bytes for part in found) / count
    )
    assert len(found) == len(case.parts) if limit == 8.5 else 0 < len(found) < len(case.parts)


def test_the_costliest_heads_are_widened_as_the_best_choice_of_all(heads_of_32: Path) -> None:
    """Among parts of one size, greedy is best: compared with every choice of as many of them."""
    case = Case(heads_of_32)
    heads = [part for part in case.parts if part.weights[0].role == "query"]
    costs = dict(zip(map(id, heads), [0.5, 0.1, 0.9, 0.3, 0.2, 0.8, 0.4, 0.05], strict=True))
    count = sum(w.size for w in case.graph.weights if w.is_matrix)
    limit = budget.bits(case.graph, case.choices) + 8 * 3.5 * heads[0].extra_bytes / count
    found = budget.spend(case.graph, case.choices, [(part, costs[id(part)]) for part in heads], limit)
    best = max(combinations(heads, 3), key=lambda some: sum(costs[id(part)] for part in some))
    assert set(map(id, found)) == set(map(id, best))
    told = {rule.match[0]: rule.heads for rule in budget.rules(found, "gptq")}
    assert told == {
        "layers.0.attn.o": (0, 2), "layers.0.attn.q": (0, 2), "layers.1.attn.o": (1,), "layers.1.attn.q": (1,)
    }  # fmt: skip


def test_too_few_bits_are_refused_with_both_numbers(heads_of_32: Path) -> None:
    case = Case(heads_of_32, Rule(("embed", "head"), "int8-g32-sym"))
    with pytest.raises(OptionError, match=r"takes \d\.\d{3} bits a weight, .*, and 4\.6 were asked for"):
        case.widened([1.0] * len(case.parts), 4.6)


def test_heads_that_groups_do_not_fit_are_widened_whole(llama_folder: Path) -> None:
    assert all(part.head is None for part in Case(llama_folder).parts)  # its heads are of 16
