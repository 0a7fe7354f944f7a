"""The figures of the quality report against torch's own, over the same weights."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from edge.bundle import Bundle
from exporters import parity
from exporters.export import export
from exporters.parity import TEXT, compare
from tests.exporters.tiny import load_reference

PARTS = {
    "attn.q": "self_attn.q_proj", "attn.k": "self_attn.k_proj", "attn.v": "self_attn.v_proj",
    "attn.o": "self_attn.o_proj", "attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm",
    "mlp.gate": "mlp.gate_proj", "mlp.up": "mlp.up_proj", "mlp.down": "mlp.down_proj",
}  # fmt: skip
OTHERS = {"embed": "model.embed_tokens.weight", "norm": "model.norm.weight", "head": "lm_head.weight"}


@pytest.fixture(scope="module")
def bundle(llama_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return export(llama_folder, tmp_path_factory.mktemp("parity") / "tiny.dsedge")


def dequantized(folder: Path, bundle: Bundle) -> PreTrainedModel:
    """transformers' model with the bundle's weights in it."""
    model = load_reference(folder)
    state = {}
    for weight in bundle.graph.weights:
        name = OTHERS.get(weight.name)
        if name is None:
            _, layer, part = weight.name.split(".", 2)
            name = f"model.layers.{layer}.{PARTS[part]}.weight"
        state[name] = torch.from_numpy(bundle.weights.read(weight.name))
    model.load_state_dict(state, strict=True)
    return model


def logits(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]


def test_figures_are_torchs(bundle: Bundle, llama_folder: Path) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(llama_folder)
    ids = tokenizer(TEXT.read_text(encoding="utf-8"), add_special_tokens=False)["input_ids"][:128]
    source, ours = (logits(model, ids) for model in (load_reference(llama_folder), dequantized(llama_folder, bundle)))
    report = bundle.manifest.quality.parity
    assert report is not None
    found = report.source
    assert found is not None
    kl = torch.nn.functional.kl_div(ours.log_softmax(-1), source.log_softmax(-1), log_target=True, reduction="none")
    assert found.mean_kl == pytest.approx(kl.sum(-1).mean().item(), rel=1e-3)
    assert found.max_diff == pytest.approx((source - ours).abs().max().item(), rel=1e-3)
    assert found.deviation == pytest.approx(source.std().item(), rel=1e-3)
    assert found.top1 == pytest.approx((source.argmax(-1) == ours.argmax(-1)).float().mean().item())
    # The exact ONNX graph, prefilled in chunks through the ring, is torch's model with the same weights.
    np.testing.assert_allclose(parity.run_graph(bundle, ids, exact=True), ours.numpy(), atol=1e-3)


def test_compare_by_hand() -> None:
    """Two positions of two tokens: the same distribution, and (1/2, 1/2) against (1/4, 3/4)."""
    reference = np.array([[5.0, 5.0], [1.0, 1.0]], np.float32)
    found = np.array([[-2.0, -2.0], [0.0, math.log(3)]], np.float32)
    result = compare(reference, found)
    assert result.mean_kl == pytest.approx((0 + 0.5 * math.log(4 / 3)) / 2, rel=1e-5)
    assert result.max_diff == 7.0
    assert result.top1 == 0.5
    assert result.deviation == 2.0


def test_a_short_text_is_repeated_and_a_small_context_respected(
    bundle: Bundle, llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "short.txt").write_text("the fox, 42")
    monkeypatch.setattr(parity, "TEXT", tmp_path / "short.txt")
    once = PreTrainedTokenizerFast.from_pretrained(llama_folder)("the fox, 42", add_special_tokens=False)["input_ids"]
    assert parity.sample_ids(bundle, 2 * len(once) + 1) == [*once, *once, once[0]]
    assert len(parity.sample_ids(bundle, 1_000_000)) == bundle.spec.context
