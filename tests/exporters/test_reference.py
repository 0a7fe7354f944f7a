"""The reference interpreter against transformers, on seeded models whose attention is peaked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edge.graph import build
from exporters import reference
from exporters.architectures import describe
from exporters.checkpoint import Checkpoint
from exporters.parity import source_reader
from exporters.reference import Reference
from tests.exporters.tiny import load_reference, tiny_llama, tiny_mistral, tiny_qwen2, write_gguf

Opener = Callable[[Path], Checkpoint]
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
# family, config, how many tokens
CASES: dict[str, tuple[Callable[..., Path], dict[str, Any], int]] = {
    "llama": (tiny_llama, {}, 40),
    "llama-head-dim": (tiny_llama, {"head_dim": 32}, 40),
    "llama-tied-biased": (tiny_llama, {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}, 40),
    "llama-linear-rope": (
        tiny_llama,
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
        90,
    ),
    "llama3-rope": (tiny_llama, {"rope_parameters": LLAMA3}, 200),
    "llama-one-kv-head": (tiny_llama, {"num_key_value_heads": 1}, 40),
    "qwen2": (tiny_qwen2, {}, 40),
    "qwen2-head-dim": (tiny_qwen2, {"num_attention_heads": 2, "num_key_value_heads": 1}, 40),
    "mistral-window": (tiny_mistral, {"sliding_window": 8}, 40),
}


def random_ids(count: int, seed: int = 0) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(3, 300, count)]


def reference_of(checkpoint: Checkpoint) -> Reference:
    model = describe(checkpoint)
    return Reference(build(model.spec), source_reader(model.weights))


@pytest.mark.parametrize("case", CASES)
def test_c6_logits_equal_transformers(case: str, tmp_path: Path, opened: Opener) -> None:
    make, config, count = CASES[case]
    folder = make(tmp_path / "model", **config)
    ids = random_ids(count)
    model = load_reference(folder)
    with torch.no_grad():
        expected = model(torch.tensor([ids]), output_attentions=True)
    logits = expected.logits[0].numpy()
    assert logits.std() > 1
    assert torch.stack(expected.attentions).amax(-1).median() > 0.5, "attention must be peaked for this to mean much"
    assert np.abs(reference_of(opened(folder)).run(ids) - logits).max() < 1e-4 * logits.std()


@pytest.mark.parametrize("make", [tiny_llama, tiny_qwen2])
def test_c7_logits_from_gguf_equal_those_from_safetensors(
    make: Callable[..., Path], tmp_path: Path, opened: Opener
) -> None:
    folder = make(tmp_path / "model")
    ids = random_ids(30)
    gguf = write_gguf(folder, tmp_path / "model.gguf")
    expected = reference_of(opened(folder)).run(ids)
    assert np.array_equal(reference_of(opened(gguf)).run(ids), expected)


def test_c4_position_3000_equals_transformers(tmp_path: Path, opened: Opener) -> None:
    folder = tiny_llama(tmp_path / "model", rope_parameters=LLAMA3)
    ids = random_ids(3001)
    with torch.no_grad():
        expected = load_reference(folder)(torch.tensor([ids])).logits[0, 3000].numpy()
    found = reference_of(opened(folder)).run(ids, last=True)[0]
    # transformers computes angles in float32: at position 3000 that alone moves a phase by about 1e-4.
    assert np.abs(found - expected).max() < 5e-3 * expected.std()


def test_prefill_in_pieces_equals_prefill_at_once(llama_folder: Path, opened: Opener) -> None:
    ids = random_ids(50)
    model = reference_of(opened(llama_folder))
    whole = model.run(ids)
    model.reset()
    pieces = [model.run(ids[start : start + 7]) for start in range(0, 50, 7)]
    assert np.abs(np.concatenate(pieces) - whole).max() < 1e-4
    model.reset()
    last = model.run(ids, last=True)
    assert last.shape == (1, 300)
    assert np.abs(last - whole[-1:]).max() < 1e-4


def test_streaming_weights_gives_the_same_logits(
    llama_folder: Path, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = random_ids(20)
    whole = reference_of(opened(llama_folder)).run(ids)
    monkeypatch.setattr(reference, "KEEP_LIMIT", 0)
    monkeypatch.setattr(reference, "_ROWS", 64 * 10)
    streamed = reference_of(opened(llama_folder))
    assert np.abs(streamed.run(ids) - whole).max() < 1e-4
    assert streamed._kept == {}
