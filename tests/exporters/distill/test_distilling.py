"""Effort high from the source to the bundle, on tiny seeded models."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edge.bundle import Bundle
from edge.errors import OptionError, UnsupportedError
from edge.tokenizer import open_tokenizer
from exporters import calibration, work
from exporters.architectures import describe
from exporters.calibration import Effort, cost
from exporters.checkpoint import Checkpoint
from exporters.distill import distilling, states
from exporters.distill.training import Course
from exporters.export import export
from exporters.parity import compare, source_reader
from exporters.reference import Reference
from tests.exporters.tiny import tiny_llama, write_gguf

Opener = Callable[[Path], Checkpoint]
WEIGHTS = "weights.safetensors"


@pytest.fixture
def own_text(tmp_path: Path) -> Path:
    path = tmp_path / "own.txt"
    path.write_text(sentences(seed=1, count=400), encoding="utf-8")
    return path


def sentences(*, seed: int, count: int) -> str:
    rng = np.random.default_rng(seed)
    words = ["quick", "brown", "fox", "jumps", "over", "lazy", "dog", "Paris", "capital", "France", "print", "index"]
    return "\n".join(" ".join(rng.choice(words, 9)) + "." for _ in range(count))


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Few steps on few tokens, by one thread."""
    monkeypatch.setattr(distilling, "COURSE", Course(steps=12, batch=1, travel=0.5))
    monkeypatch.setitem(calibration.EFFORTS, "high", Effort("heads", distills=True, tokens=5120))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def made(folder: Path, out: Path, effort: str, text: Path | None, **options: Any) -> Bundle:
    return export(
        folder, out, recipe="int4-g32-sym", targets=(), effort=effort, calibration=text, **options
    )  # fmt: skip


def test_it_is_closer_to_the_source_than_what_it_began_with(
    opened: Opener, own_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On sentences that it was not trained on."""
    monkeypatch.setattr(distilling, "COURSE", Course(steps=60, batch=1, travel=0.5))
    folder = tiny_llama(tmp_path / "model", initializer_range=0.1)  # its logits are smooth enough for small steps
    stages: dict[str, float] = {}

    def progress(stage: str, share: float) -> None:
        assert share >= stages.get(stage, 0.0)
        stages[stage] = share

    medium = made(folder, tmp_path / "medium.dsedge", "medium", own_text)
    high = made(folder, tmp_path / "high.dsedge", "high", own_text, progress=progress)
    model = describe(opened(folder))
    source = Reference(high.graph, source_reader(model.weights))
    ids = open_tokenizer(high).encode(sentences(seed=2, count=40))[:400]
    expected = source.run(ids)
    kl = {
        name: compare(expected, Reference(bundle.graph, bundle.weights.read).run(ids)).mean_kl
        for name, bundle in (("medium", medium), ("high", high))
    }
    assert kl["high"] < 0.95 * kl["medium"]
    assert (stages["calibrate"], stages["distill"]) == (1.0, 1.0)
    told = high.manifest.recipe["distillation"]
    assert (told["steps"], told["travel"], told["used"]) == (60, 0.5, True)
    assert told["held_out_kl"][1] < 0.95 * told["held_out_kl"][0]
    assert "distillation" not in medium.manifest.recipe
    assert {rule["method"] for rule in high.manifest.recipe["rule"]} == {"heads"}
    assert not list((tmp_path / "high.dsedge").rglob(".*"))
    assert high.manifest.schemes == medium.manifest.schemes
    assert high.weights.shapes == medium.weights.shapes


def test_an_interrupted_one_goes_on_to_the_same_bytes(
    llama_folder: Path, own_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "SECONDS", 0.0)
    whole = made(llama_folder, tmp_path / "whole.dsedge", "high", own_text)
    seen: list[tuple[str, float]] = []

    def stop(stage: str, share: float) -> None:
        if stage == "distill" and share > 0.5:
            raise KeyboardInterrupt

    out = tmp_path / "own.dsedge"
    with pytest.raises(KeyboardInterrupt):
        made(llama_folder, out, "high", own_text, progress=stop, resume=True, name="whole")
    assert work.place(out).is_dir()
    assert not out.exists()
    resumed = made(
        llama_folder, out, "high", own_text, progress=lambda *told: seen.append(told), resume=True, name="whole"
    )
    assert "calibrate" not in {stage for stage, _ in seen}
    trained = [share for stage, share in seen if stage == "distill" and 0.1 < share < 0.95]
    assert min(trained) > 0.5
    assert not work.place(out).exists()
    assert (resumed.path / WEIGHTS).read_bytes() == (whole.path / WEIGHTS).read_bytes()
    assert resumed.manifest.recipe == whole.manifest.recipe


def test_results_for_something_else_are_not_taken_up(llama_folder: Path, own_text: Path, tmp_path: Path) -> None:
    def stop(stage: str, share: float) -> None:
        if stage == "distill" and share > 0.5:
            raise KeyboardInterrupt

    out = tmp_path / "own.dsedge"
    with pytest.raises(KeyboardInterrupt):
        made(llama_folder, out, "high", own_text, progress=stop, resume=True)
    own_text.write_text(own_text.read_text(encoding="utf-8")[::-1], encoding="utf-8")
    stages: set[str] = set()
    made(llama_folder, out, "high", own_text, progress=lambda stage, share: stages.add(stage), resume=True)
    assert "calibrate" in stages


def test_an_interrupt_leaves_nothing(llama_folder: Path, own_text: Path, tmp_path: Path) -> None:
    def stop(stage: str, share: float) -> None:
        if stage == "distill" and share > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made(llama_folder, tmp_path / "x.dsedge", "high", own_text, progress=stop)
    assert [path.name for path in tmp_path.iterdir()] == ["own.txt"]


def test_without_torch_there_is_one_clear_line(
    llama_folder: Path, own_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find(name))
    with pytest.raises(UnsupportedError, match=r"torch, which is not installed: pip install 'dsedge\[torch\]'"):
        made(llama_folder, tmp_path / "x.dsedge", "high", own_text)


def test_too_little_memory_is_told_before_the_work(
    llama_folder: Path, own_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost, "available", lambda: 200_000_000)
    with pytest.raises(OptionError, match=r"takes about 0\.3 GB of memory for this model, and 0\.2 GB are available"):
        made(llama_folder, tmp_path / "x.dsedge", "high", own_text)


def test_codes_of_the_source_are_carried(llama_folder: Path, own_text: Path, tmp_path: Path) -> None:
    """Nothing is learned where every code is the source's own, and a text for it would be of no use."""
    source = write_gguf(llama_folder, tmp_path / "tiny.gguf", quantization="Q4_1")
    plain, high = (export(source, tmp_path / f"{e}.dsedge", targets=(), effort=e) for e in ("none", "high"))
    assert (plain.path / WEIGHTS).read_bytes() == (high.path / WEIGHTS).read_bytes()
    assert "distillation" not in high.manifest.recipe
    with pytest.raises(OptionError, match="would not be used"):
        export(source, tmp_path / "x.dsedge", targets=(), effort="high", calibration=own_text)
