"""What benchmarks.fidelity compares with: a source whose rope depends on the context, and a bundle's own weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

import edge
from benchmarks import fidelity
from exporters.checkpoint.open import open_checkpoint
from tests.exporters import tiny
from tests.exporters.test_reference import LONGROPE, random_ids


def test_a_source_with_longrope_runs_with_its_long_factors(tmp_path: Path) -> None:
    folder = tiny.tiny_phi3(tmp_path / "model", original_max_position_embeddings=64, rope_parameters=LONGROPE)
    ids = random_ids(70)  # more than the 64 positions of the short ones
    with torch.no_grad():
        expected = tiny.load_reference(folder)(torch.tensor([ids])).logits[0].numpy()
    checkpoint = open_checkpoint(folder)
    try:
        found = fidelity.source_model(checkpoint)(ids)
    finally:
        checkpoint.close()
    assert np.abs(found - expected).max() < 1e-4 * expected.std()


def test_the_native_engine_is_also_set_against_the_weights_that_it_runs(tmp_path: Path) -> None:
    """Other numbers in the source do not count there, and other graphs have no row."""
    bundle = edge.export(tiny.tiny_llama(tmp_path / "source"), tmp_path / "tiny.dsedge")
    exact = fidelity.reference_model(bundle.graph, bundle.weights.read)
    models: dict[str, tuple[int, fidelity.Model]] = {
        "tiny, native engine": (2_000_000, exact),
        "tiny, native engine, int8 cache": (2_000_000, lambda ids: exact(ids)[:, ::-1]),
        "tiny, ONNX, exact graph": (0, exact),
    }
    same, other = fidelity.own_weights({"tiny": bundle}, models, [random_ids(70)]).rows
    assert (same[:3], same[4]) == (("tiny, native engine", "2.0", "0.00000"), "100.0%")
    assert float(other[2]) > 0.1
