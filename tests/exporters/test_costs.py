"""What each part of the weights costs, against transformers' model with just that part replaced."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from edge import graph as graphs
from edge.bundle import Bundle
from exporters.architectures import describe
from exporters.checkpoint.open import open_checkpoint
from exporters.export import export
from exporters.parity import source_reader
from exporters.report import costs
from tests.exporters.test_parity import OTHERS, PARTS
from tests.exporters.test_reference import random_ids
from tests.exporters.tiny import load_reference, tiny_deepseek_v2

pytestmark = pytest.mark.usefixtures("cache")
IDS = random_ids(40)


def silent(stage: str, done: float, transfer: object = None) -> None:
    pass


def found(folder: Path, bundle: Bundle) -> costs.Costs | None:
    checkpoint = open_checkpoint(folder)
    try:
        model = describe(checkpoint)
        graph = graphs.build(model.spec)
        return costs.find(graph, source_reader(model.weights), bundle.weights.read, IDS, silent)
    finally:
        checkpoint.close()


def cost_of(folder: Path, bundle: Bundle, parts: dict[str, tuple[slice, ...]]) -> float:
    """The KL of transformers' model with the bundle's numbers in these parts of these weights."""
    model = load_reference(folder)
    with torch.no_grad():
        a = torch.log_softmax(model(torch.tensor([IDS])).logits[0].double(), -1)
        state = model.state_dict()
        for name, where in parts.items():
            key = OTHERS.get(name)
            if key is None:
                _, layer, part = name.split(".", 2)
                key = f"model.layers.{layer}.{PARTS[part]}.weight"
            state[key][where] = torch.from_numpy(bundle.weights.read(name))[where]
        b = torch.log_softmax(model(torch.tensor([IDS])).logits[0].double(), -1)
    return float((a.exp() * (a - b)).sum(-1)[costs.FIRST :].mean())


def test_each_part_costs_what_it_costs_in_transformers(llama_folder: Path, llama_bundle: Bundle) -> None:
    told = found(llama_folder, llama_bundle)
    assert told is not None
    assert told.tokens == 40 - costs.FIRST
    assert set(told.kinds) == {"embed", "query", "key", "value", "output", "gate", "up", "down", "head"}
    whole = (slice(None),)
    expected = cost_of(llama_folder, llama_bundle, {f"layers.{i}.mlp.down": whole for i in (0, 1)})
    assert told.kinds["down"] == pytest.approx(expected, rel=1e-3)
    second = told.layers[1]
    assert (len(second.heads), len(second.kv_heads)) == (4, 2)
    names = ("attn.q", "attn.k", "attn.v", "attn.o")
    expected = cost_of(llama_folder, llama_bundle, {f"layers.1.{name}": whole for name in names})
    assert second.attention == pytest.approx(expected, rel=1e-3)
    head, kv = slice(32, 48), slice(16, 32)  # the third head of four, the second of two
    parts: dict[str, tuple[slice, ...]] = {"layers.1.attn.q": (head,), "layers.1.attn.o": (slice(None), head)}
    assert second.heads[2] == pytest.approx(cost_of(llama_folder, llama_bundle, parts), rel=1e-3)
    parts = {"layers.1.attn.k": (kv,), "layers.1.attn.v": (kv,)}
    assert second.kv_heads[1] == pytest.approx(cost_of(llama_folder, llama_bundle, parts), rel=1e-3)


def test_q4_embedding_and_head_have_eight_bits_and_a_share_of_the_loss(llama_folder: Path, tmp_path: Path) -> None:
    """By the recipes for whole models, beside a head in four bits; both shares are in the report."""
    shares = []
    for recipe in ("sub1b", "int4-g32-sym"):
        bundle = export(llama_folder, tmp_path / f"{recipe}.dsedge", recipe=recipe, targets=())
        told = found(llama_folder, bundle)
        assert told is not None
        shares.append([told.kinds[kind] / sum(told.kinds.values()) for kind in ("embed", "head")])
    (embed, head), (narrow_embed, narrow_head) = shares
    assert 0 < embed < 0.1 * narrow_embed
    assert 0 < head < 0.1 * narrow_head


def test_a_part_that_lost_nothing_costs_nothing(llama_folder: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        '[[rule]]\nmatch = "layers.0.*"\nscheme = "float32"\n[[rule]]\nmatch = "*"\nscheme = "int4-g32-sym"\n'
    )
    told = found(llama_folder, export(llama_folder, tmp_path / "x.dsedge", recipe=recipe, targets=()))
    assert told is not None
    first, second = told.layers
    assert (first.attention, first.mlp, set(first.heads)) == (0.0, 0.0, {0.0})
    assert min(second.attention, second.mlp, *second.heads) > 0


def test_other_attention_has_no_heads(tmp_path: Path) -> None:
    folder = tiny_deepseek_v2(tmp_path / "m")
    told = found(folder, export(folder, tmp_path / "x.dsedge"))
    assert told is not None
    assert [layer.heads for layer in told.layers] == [(), (), ()]
    assert min(min(layer.attention, layer.mlp) for layer in told.layers) > 0
    assert {"router", "latent", "key_up"} <= set(told.kinds)


def test_large_models_get_fewer_parts(
    llama_folder: Path, llama_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = llama_bundle.graph.parameters * costs.TOKENS_READ
    monkeypatch.setattr(costs, "WORK", size * (9 + 4))
    told = found(llama_folder, llama_bundle)
    assert told is not None
    assert [layer.heads for layer in told.layers] == [(), ()]
    monkeypatch.setattr(costs, "WORK", size * 9)
    told = found(llama_folder, llama_bundle)
    assert told is not None
    assert told.layers == ()
    assert len(told.kinds) == 9
    monkeypatch.setattr(costs, "MEMORY", 1000)
    assert found(llama_folder, llama_bundle) is None
