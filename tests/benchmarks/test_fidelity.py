"""The source in benchmarks.fidelity: as far as its rope depends on the context, it is that of a chunk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

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
        found = fidelity._source_model(checkpoint)(ids)
    finally:
        checkpoint.close()
    assert np.abs(found - expected).max() < 1e-4 * expected.std()
