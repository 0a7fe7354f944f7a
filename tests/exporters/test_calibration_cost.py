"""What a calibration is said to take: a bound of what it takes, a hand-counted amount of work, and a refusal."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from edge import graph as graphs
from edge.errors import OptionError
from exporters.architectures import describe
from exporters.calibration import calibrator, cost
from exporters.checkpoint import Checkpoint
from exporters.export import export
from tests.exporters.test_calibration import planned, samples
from tests.exporters.tiny import tiny_llama, tiny_olmoe

Opener = Callable[[Path], Checkpoint]


def test_memory_is_a_bound_that_is_not_far_off(opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "_BASE", 0)
    folder = tiny_llama(tmp_path / "model", hidden_size=128, intermediate_size=1600)
    model, graph, plans = planned(opened(folder), "gptq")
    ids = samples(12, 64, model.spec.vocab_size)
    tracemalloc.start()
    for _ in calibrator.encode(graph, plans, ids, tmp_path):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    told = cost.memory(graph, plans, ids)
    assert peak <= told < 2.5 * peak
    assert cost.memory(graph, plans, [*ids, *ids]) - told <= 2 * 12 * 64 * 128 * 4 + 300 * 128 * 4  # spilled beyond


def test_work_is_what_can_be_counted_by_hand(opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One layer of hidden 64, inner 96, 4 heads of 16 and 2 of keys, 100 tokens; the embedding costs nothing."""
    monkeypatch.setattr(cost, "_speed", lambda: 2.0)
    folder = tiny_llama(tmp_path / "model", num_hidden_layers=1, hidden_size=64, intermediate_size=96)
    model, graph, plans = planned(opened(folder), "gptq")
    ids = samples(2, 50, model.spec.vocab_size)
    layer = {"qkv": (64, 64 * (64 + 32 + 32)), "o": (64, 64 * 64), "gate, up": (64, 64 * 192), "down": (96, 64 * 96)}
    forward = sum(2 * 100 * numbers for _, numbers in layer.values())
    rounding = {**layer, "head": (64, 64 * model.spec.vocab_size)}
    counted = sum(100 * c**2 + c**3 / 3 + 2 * 5 * numbers * c for c, numbers in rounding.values())
    assert cost.seconds(graph, plans, ids) == pytest.approx(2.0 * (forward + counted) / 2.0)


def test_a_token_is_multiplied_with_its_chosen_experts_alone(opened: Opener, tmp_path: Path) -> None:
    spec = describe(opened(tiny_olmoe(tmp_path / "model", num_experts=4, num_experts_per_tok=2))).spec
    graph = graphs.build(spec)
    experts = sum(w.size for w in graph.weights if len(w.shape) == 3)
    assert cost._experts_a_token(graph) == experts / 4 * 2


def test_too_little_memory_is_refused_with_both_numbers_before_anything_is_written(
    llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "own.txt"
    text.write_text("\n".join(f"The quick dog {word} sleeps in the country." for word in range(300)))
    stages: list[str] = []

    def run(found: int) -> None:
        monkeypatch.setattr(cost, "available", lambda: found)
        export(
            llama_folder, tmp_path / "x.dsedge", recipe="int4-g32-sym", targets=(), effort="medium", calibration=text,
            progress=lambda stage, share: stages.append(stage),
        )  # fmt: skip

    with pytest.raises(OptionError, match=r"takes about 0\.3 GB of memory for this model, and 0\.1 GB are available"):
        run(100_000_000)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own.txt"]
    run(1_000_000_000)
    assert any(stage.startswith("calibrate: about ") and "at most 0.3 GB" in stage for stage in stages)
