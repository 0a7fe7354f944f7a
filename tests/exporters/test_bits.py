"""Bits by head in an export: the limit is kept, the manifest tells the heads, and the costliest are the ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import edge
from edge import payload
from edge.bundle import Bundle
from edge.errors import OptionError
from exporters.calibration import bits
from exporters.checkpoint import Checkpoint
from exporters.export import export
from exporters.parity import source_reader
from exporters.quant import budget, rtn
from exporters.reference import Reference
from tests.exporters.test_calibration import planned, samples
from tests.exporters.tiny import tiny_llama

Opener = Callable[[Path], Checkpoint]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("bits") / "llama", head_dim=32)


@pytest.fixture
def own_text(tmp_path: Path) -> Path:
    path = tmp_path / "own.txt"
    path.write_text("\n".join(f"The quick dog {index} sleeps in the country." for index in range(300)))
    return path


def stored_bits(bundle: Bundle) -> float:
    matrices = [weight for weight in bundle.graph.weights if weight.is_matrix]
    stored = sum(bundle.weights.size(run.name) for weight in matrices for run in bundle.weights.runs[weight.name])
    return 8 * stored / sum(weight.size for weight in matrices)


@pytest.mark.parametrize("effort", ["none", "medium"])
def test_an_export_keeps_the_limit_and_is_closer_to_its_source(
    effort: str, folder: Path, own_text: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"targets": (), "effort": effort, "calibration": own_text}
    if effort == "none":
        del options["calibration"]
    plain = export(folder, tmp_path / "plain.dsedge", recipe="int4-g32-sym", **options)
    made = export(folder, tmp_path / "made.dsedge", bits=5.2, **options)
    assert stored_bits(plain) == pytest.approx(4.5)
    assert 4.9 < stored_bits(made) <= 5.2
    rules = made.manifest.recipe["rule"]
    assert rules[0]["scheme"] == "int8-g32-sym"
    heads = {rule["match"][0]: rule["heads"] for rule in rules if "heads" in rule}
    assert heads
    assert all(heads.get(name.replace(".q", ".o")) == found for name, found in heads.items() if name.endswith(".q"))
    assert kl(made) < kl(plain)


def log_softmax(logits: Any) -> Any:
    return torch.log_softmax(torch.from_numpy(logits).double(), -1).numpy()


def kl(bundle: Bundle) -> float:
    assert bundle.manifest.quality.parity is not None
    assert bundle.manifest.quality.parity.source is not None
    return bundle.manifest.quality.parity.source.mean_kl


def test_the_parts_that_cost_most_a_bit_are_widened(folder: Path, opened: Opener) -> None:
    """Against a slow measurement: the float model with one part rounded, all parts, one run each."""
    model, graph, plans = planned(opened(folder), "nearest")
    (ids,) = samples(1, 96, model.spec.vocab_size)
    parts = list(budget.parts(graph, {name: plan.choice for name, plan in plans.items()}))
    source = {w.name: model.weights[w.name].read() for w in graph.weights}
    expected = log_softmax(Reference(graph, source_reader(model.weights), context=96).run(ids))
    kind = payload.parse_scheme("int4-g32-sym")
    assert kind is not None

    def cost(part: budget.Part) -> float:
        changed = {}
        for weight in part.weights:
            values = source[weight.name].copy()
            rounded = payload.dequantize(kind, rtn.encode(kind, values), values.shape[1])
            where: Any = slice(None)
            if part.head is not None:
                span = slice(part.head * weight.head_dim, (part.head + 1) * weight.head_dim)
                where = (slice(None), span) if weight.role == "output" else span
            values[where] = rounded[where]
            changed[weight.name] = values
        run = Reference(graph, lambda name, a, b: changed.get(name, source[name])[a:b], context=96).run(ids)
        return float((np.exp(expected) * (expected - log_softmax(run))).sum(axis=-1)[16:].mean()) / part.extra_bytes

    worth = sorted(parts, key=cost, reverse=True)
    recipe = bits.widen(graph, plans, int4(), ids, limit=4.9, progress=lambda share: None)
    named = {(rule.match[0], head) for rule in recipe.rules[:-1] for head in rule.heads or (None,)}
    best = {(weight.name, worth[0].head) for weight in worth[0].weights}
    assert best <= named
    assert not {(weight.name, worth[-1].head) for weight in worth[-1].weights} & named


def int4() -> Any:
    from exporters.quant import recipe

    return recipe.Recipe("r", (recipe.Rule(("*",), "int4-g32-sym"),))


@pytest.mark.parametrize(
    ("limit", "recipe", "words"),
    [(3.9, None, r"bits is 3\.9"), (4.4, None, r"takes 4\.500 bits .* and 4\.4 were"), (5, "int8", r"8\.500 bits")],
)
def test_a_limit_that_cannot_be_kept_is_refused_before_a_weight_is_read(
    limit: float, recipe: str | None, words: str, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=words):
        edge.export(folder, tmp_path / "x.dsedge", bits=limit, recipe=recipe)
    assert not list(tmp_path.iterdir())
