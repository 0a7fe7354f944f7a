"""What is done to a graph before it becomes a program: the same logits from less work."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import edge
from edge.graph import HIDDEN, LOGITS, TOKENS, Graph, build
from edge.kv import plan_layout
from edge.ops import Linear, Select
from edge.options import RuntimeOptions
from edge.runtime import open_runtime
from edge.session import Session
from runtimes.native.passes import select_early
from tests.exporters.tiny import tiny_gemma3
from tests.specs import small_spec

SPEC = small_spec(
    windows=(None, None), attention={"heads": 4, "kv_heads": 2, "head_dim": 8, "scale": 0.25}, mlp={"size": 96},
    vocab_size=300, hidden_size=64,
)  # fmt: skip


def multiplied_for_each_row(graph: Graph) -> int:
    """Numbers of the matrices that every row of a prompt goes through."""
    every_row, numbers = {TOKENS}, 0
    for op in graph.ops:
        if not isinstance(op.attrs, Select) and every_row.issuperset(op.inputs):
            every_row.add(op.output)
            if isinstance(op.attrs, Linear):
                numbers += op.attrs.weight.size
    return numbers


def test_a_prompts_rows_skip_what_follows_the_last_attention() -> None:
    graph = build(SPEC)
    layer = 64 * (32 + 16 + 16) + 32 * 64 + 3 * 64 * 96  # q, k, v, o, gate, up, down
    assert multiplied_for_each_row(graph) == 2 * layer
    assert multiplied_for_each_row(select_early(graph)) == layer + 64 * (32 + 16 + 16)


def test_values_keep_their_names_and_the_graph_its_weights() -> None:
    graph = build(SPEC)
    early = select_early(graph)
    assert {op.output for op in early.ops} >= {HIDDEN, LOGITS, "/layers.1/mlp/residual"}
    assert early.weights == graph.weights
    assert [op.inputs for op in early.ops if isinstance(op.attrs, Select)] == [
        ("/layers.1/attn/mix",), ("/layers.0/mlp/residual",),
    ]  # fmt: skip


def test_wants_agree_to_the_bit(tmp_path: Path) -> None:
    """Over sandwich norms, too; hidden states come out for every row, and are what the head multiplies."""
    pytest.importorskip("runtimes.native._native", reason="the native engine was not built here")
    bundle = edge.export(tiny_gemma3(tmp_path / "source"), tmp_path / "tiny.dsedge")
    ids = [int(i) for i in np.random.default_rng(0).integers(3, 300, 30)]
    found = {}
    for want in ("all", "last", "hidden"):
        runtime = open_runtime(bundle, plan_layout(bundle.spec, 30), RuntimeOptions(runtime="native", exact=True))
        found[want] = Session(runtime, "error").step(ids, want)  # type: ignore[arg-type]
        runtime.close()
    assert np.array_equal(found["last"], found["all"][-1])
    head = bundle.weights.read("embed" if bundle.spec.tied_head else "head")
    assert found["hidden"].shape == (30, bundle.spec.hidden_size)
    np.testing.assert_allclose(found["hidden"] @ head.T, found["all"], atol=1e-3 * float(found["all"].std()))
