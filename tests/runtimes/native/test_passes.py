"""What is done to a graph before it becomes a program: the same logits from less work."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edge
from edge.bundle import Bundle
from edge.graph import HIDDEN, LOGITS, TOKENS, Graph, build
from edge.kv import plan_layout
from edge.ops import Linear, Select
from edge.options import RuntimeOptions
from edge.runtime import open_runtime
from edge.session import Session
from runtimes.native import engine
from runtimes.native.builder import build as build_program
from runtimes.native.passes import PASSES, Passes, select_early
from tests.exporters.tiny import tiny_gemma2, tiny_gemma3, tiny_qwen2
from tests.specs import runs_of, small_spec

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
        found[want] = Session(runtime).step(ids, want)  # type: ignore[arg-type]
        runtime.close()
    assert np.array_equal(found["last"], found["all"][-1])
    head = bundle.weights.read("embed" if bundle.spec.tied_head else "head")
    assert found["hidden"].shape == (30, bundle.spec.hidden_size)
    np.testing.assert_allclose(found["hidden"] @ head.T, found["all"], atol=1e-3 * float(found["all"].std()))


def logits_of(bundle: Bundle, ids: list[int], chunk: int, *, exact: bool) -> np.ndarray[Any, Any]:
    layout = plan_layout(bundle.spec, len(ids), chunk=chunk)
    runtime = open_runtime(bundle, layout, RuntimeOptions(runtime="native", threads=2, exact=exact))
    session = Session(runtime)
    found = np.concatenate([session.step(ids[i : i + chunk], "all") for i in range(0, len(ids), chunk)])
    runtime.close()
    return found


def without(name: str) -> Passes:
    """All passes but one of that name."""
    kept = Passes(
        tuple(one for one in PASSES.graph if one.__name__ != name),
        tuple(one for one in PASSES.steps if one.__name__ != name),
    )
    assert len(kept.graph) + len(kept.steps) == len(NAMES) - 1
    return kept


NAMES = [one.__name__ for one in (*PASSES.graph, *PASSES.steps)]
NONE = Passes((), ())


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> list[Bundle]:
    """Plain norms with biases on q, k and v, and sandwich norms with q and k norms, soft-caps and windows."""
    folder = tmp_path_factory.mktemp("passes")
    return [
        edge.export(make(folder / name), folder / f"{name}.dsedge")
        for name, make in (("qwen2", tiny_qwen2), ("gemma2", tiny_gemma2), ("gemma3", tiny_gemma3))
    ]


@pytest.mark.parametrize("left_out", [*NAMES, "all"])
def test_logits_are_the_same_bits_without_a_pass(
    left_out: str, bundles: list[Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("runtimes.native._native", reason="the native engine was not built here")
    ids = [int(i) for i in np.random.default_rng(0).integers(3, 300, 110)]
    passes = NONE if left_out == "all" else without(left_out)
    for bundle in bundles:
        for chunk, exact in ((110, False), (1, False), (110, True)):
            monkeypatch.setattr(engine, "build", build_program)
            expected = logits_of(bundle, ids, chunk, exact=exact)
            monkeypatch.setattr(engine, "build", partial(build_program, passes=passes))
            assert np.array_equal(logits_of(bundle, ids, chunk, exact=exact), expected)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("join_siblings", {"linear": 11, "gated_linear": 2, "gate": 0, "quantize": 2}),
        ("fuse_gates", {"linear": 9, "gated_linear": 0, "gate": 2, "quantize": 4}),
        ("fuse_residuals", {"add": 4}),
        ("rotate_in_attention", {"rope": 4}),
        ("quantize_where_made", {"quantize": 9}),
    ],
)
def test_each_pass_takes_instructions_away(name: str, kinds: dict[str, int]) -> None:
    """What a program of two layers has of some kinds without a pass; with it none of adds, ropes and gates are left."""
    graph = build(SPEC)
    runs = runs_of(graph, "int4-g32-sym")
    whole = Counter(step.kind for step in build_program(graph, runs, exact=False).instructions)
    found = Counter(step.kind for step in build_program(graph, runs, exact=False, passes=without(name)).instructions)
    assert {kind: found[kind] for kind in kinds} == kinds
    assert (whole["linear"], whole["gated_linear"], whole["quantize"]) == (7, 2, 2)
    assert whole["add"] == whole["rope"] == whole["gate"] == 0
    assert found.total() > whole.total()
