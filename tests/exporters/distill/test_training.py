"""The course of a distillation, and the teacher's part of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from edge.graph import build
from exporters.architectures import describe
from exporters.checkpoint import Checkpoint
from exporters.distill import budget, teacher
from exporters.distill.training import Course
from exporters.payload_writer import Plan
from exporters.quant.recipe import Choice
from exporters.reference import Reference
from tests.exporters.tiny import tiny_gemma2

Opener = Callable[[Path], Checkpoint]


def test_rates_rise_then_fade_and_sum_up_to_the_travel() -> None:
    course = Course(steps=80, batch=1, travel=0.7)
    rates = [course.rate(step) for step in range(80)]
    assert sum(rates) == pytest.approx(0.7)
    assert rates[:10] == sorted(rates[:10])
    assert rates[0] == pytest.approx(rates[9] / 10, rel=0.05)
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert rates[39] == pytest.approx(rates[9] * 1.0196 / 1.9312, rel=1e-3)  # half a cosine, at 39.5 and 9.5 of 80
    assert rates[-1] < 0.001 * rates[9]


def test_each_sample_comes_once_before_any_comes_again() -> None:
    batches = [index.tolist() for index in Course(steps=9, batch=2, travel=1.0).batches(6)]
    order = [sample for batch in batches for sample in batch]
    assert [sorted(order[start : start + 6]) for start in (0, 6, 12)] == [list(range(6))] * 3
    assert order[:6] != order[6:12] != order[12:]
    assert batches == [index.tolist() for index in Course(steps=9, batch=2, travel=1.0).batches(6)]


def test_the_teacher_says_what_the_reference_does(
    opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A soft-capped model with a tied head: the distribution among the compared tokens, and which tokens those are."""
    monkeypatch.setattr(teacher, "MASS", 0.9)
    model = describe(opened(tiny_gemma2(tmp_path / "model")))
    graph = build(model.spec)
    plans = {w.name: Plan(model.weights[w.name], Choice.of("float32")) for w in graph.weights}
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, 300, (2, 20)))
    asked = teacher.ask(graph, plans, ids)
    reference = Reference(graph, lambda name, start, stop: model.weights[name].read(start, stop), context=20)
    logits = []
    for sample in ids.tolist():
        reference.reset()
        logits.append(reference.run(sample))
    whole = torch.from_numpy(np.concatenate(logits)).softmax(dim=1)
    order = whole.sum(dim=0).argsort(descending=True)
    count = int((whole.sum(dim=0)[order].cumsum(0) < 0.9 * 40).sum()) + 1
    assert asked.tokens.tolist() == sorted(order[:count].tolist())
    assert 2 < count < 250
    chosen = whole[:, asked.tokens]
    expected = (chosen / chosen.sum(dim=1, keepdim=True)).log()
    torch.testing.assert_close(asked.log_probabilities(torch.tensor([0, 1])), expected, rtol=1e-3, atol=2e-3)


def test_the_budget_grows_with_what_is_learned(opened: Opener, llama_folder: Path) -> None:
    model = describe(opened(llama_folder))
    graph = build(model.spec)

    def needed(scheme: str) -> int:
        plans = {
            w.name: Plan(model.weights[w.name], Choice.of(scheme if w.is_matrix else "float32")) for w in graph.weights
        }
        return budget.needed(graph, plans, tokens=100, batch=10, vocabulary=300)

    matrices = sum(weight.size for weight in graph.weights if weight.is_matrix)
    assert needed("int4-g32-sym") - needed("int8-g32-sym") == 16 * matrices
