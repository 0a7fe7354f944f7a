"""benchmarks.quality on tiny models: rows are kept and read again, and the planted model is what it says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import edge
from benchmarks import planted, quality
from edge import graph as graphs
from exporters.architectures import describe
from exporters.calibration import text
from exporters.checkpoint.open import open_checkpoint
from exporters.parity import source_reader
from exporters.quant import method
from exporters.reference import Reference
from runtimes.kv_dtypes import kv_dtypes
from tests.exporters import tiny


def test_rows_are_measured_once_and_all_stand_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "TOKENS", 2048)
    monkeypatch.setattr(method, "METHODS", dict(method.METHODS))  # the command adds one of its own
    monkeypatch.setattr(quality, "FOLDER", tmp_path / "rows")
    monkeypatch.setattr(quality, "PAGE", tmp_path / "quality.md")
    source = tiny.tiny_llama(tmp_path / "model")
    words = ["quality", "--source", str(source), "--name", "tiny"]

    def run(*rows: str) -> None:
        monkeypatch.setattr("sys.argv", [*words, *(word for row in rows for word in ("--row", row))])
        assert quality.main() == 0

    run("rounding", "clipping")
    run("feedback", "rounding")
    found = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "rows").glob("*.json")}
    assert set(found) == {"tiny, rounding", "tiny, clipping", "tiny, feedback"}
    kl = {name.partition(", ")[2]: figures["mean_kl"] for name, figures in found.items()}
    assert kl["feedback"] < kl["clipping"]
    assert kl["feedback"] < kl["rounding"]
    page = (tmp_path / "quality.md").read_text()
    lines = [line for line in page.split("\n") if line.startswith(("| rounding |", "| clipping |", "| feedback |"))]
    assert [line.split(" | ")[2] for line in lines] == [
        f"{kl[name]:.4f}" for name in ("rounding", "clipping", "feedback")
    ]
    (tmp_path / "rows" / "tiny, rounding.json").write_text(json.dumps({**found["tiny, rounding"], "mean_kl": 7.0}))
    run("rounding")
    assert "7.0000" in (tmp_path / "quality.md").read_text()


def test_k8_the_planted_model_is_a_qwen2_with_large_key_biases_in_two_layers(tmp_path: Path) -> None:
    source = tiny.tiny_llama(tmp_path / "model", num_hidden_layers=3, tie_word_embeddings=True)
    made = planted.write(source, tmp_path / "planted")
    ids = np.random.default_rng(0).integers(3, 290, 40).tolist()
    with torch.no_grad():
        expected = tiny.load_reference(made)(torch.tensor([ids])).logits[0].numpy()
    checkpoint = open_checkpoint(made)
    try:
        model = describe(checkpoint)
        found = Reference(graphs.build(model.spec), source_reader(model.weights)).run(ids)
    finally:
        checkpoint.close()
    assert np.abs(found - expected).max() < 1e-4 * expected.std()
    bundle = edge.export(made, tmp_path / "x.dsedge", recipe="int8", targets=())
    assert kv_dtypes(bundle, "int8") == ["float32", "int8", "float32"]
