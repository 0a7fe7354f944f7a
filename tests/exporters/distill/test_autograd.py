"""The graph with gradients against transformers: logits, and the embedding's gradient, which passes through all ops."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from edge.errors import UnsupportedError
from edge.graph import TOKENS, build
from edge.ops import Gate
from exporters.architectures import describe
from exporters.calibration import EFFORTS
from exporters.checkpoint import Checkpoint
from exporters.distill import autograd
from exporters.distill.state import Pass
from exporters.encoding import Encoding
from exporters.reference import EVALUATORS
from tests.exporters.test_reference import CASES
from tests.exporters.tiny import load_reference
from tests.specs import small_spec

Opener = Callable[[Path], Checkpoint]


@pytest.mark.parametrize("case", CASES)
def test_logits_and_gradients_equal_transformers(case: str, opened: Opener, tmp_path: Path) -> None:
    make, config, length = CASES[case]
    folder = make(tmp_path / "model", **config)
    expected_model = load_reference(folder)
    model = describe(opened(folder))
    graph = build(model.spec)
    weights = {w.name: torch.from_numpy(model.weights[w.name].read()).view(w.shape) for w in graph.weights}
    weights["embed"].requires_grad_()
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, model.spec.vocab_size, (2, length), generator=generator)
    pull = torch.randn(2, length, model.spec.vocab_size, generator=generator)
    expected = expected_model(ids).logits
    (expected * pull).sum().backward()
    batch = Pass(graph, lambda weight: weights[weight.name], 2, length)
    found = autograd.run(batch, graph.ops, {TOKENS: ids.flatten()}).view(expected.shape)
    (found * pull).sum().backward()
    torch.testing.assert_close(found.detach(), expected.detach(), rtol=1e-4, atol=2e-4 * expected.detach().std().item())
    gradient: Any = expected_model.get_input_embeddings().weight.grad
    torch.testing.assert_close(weights["embed"].grad, gradient, rtol=1e-3, atol=1e-3 * gradient.abs().max().item())


def test_every_op_of_the_reference_has_an_evaluator() -> None:
    assert set(EVALUATORS) < set(autograd.EVALUATORS)


def test_an_op_without_an_evaluator_is_refused_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(autograd.EVALUATORS, Gate)
    monkeypatch.setattr("exporters.distill.useful", lambda plans: True)
    graph = build(small_spec())
    with pytest.raises(UnsupportedError, match=r"does not know op kind 'gate' \(/layers.0/mlp/act\)"):
        Encoding(graph, {}, EFFORTS["high"]).check()
