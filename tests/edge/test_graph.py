"""The Graph: a small decoder written out op by op, and every broken graph that `verify` must refuse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from edge.decoder import DecoderSpec, LayerSpec, RopeSpec
from edge.errors import BundleError
from edge.graph import LOGITS, Graph, Op, Weight, build, verify


def make_spec(**changes: Any) -> DecoderSpec:
    values: dict[str, Any] = {
        "family": "test", "vocab_size": 11, "hidden_size": 6, "intermediate_size": 10, "heads": 4, "kv_heads": 2,
        "head_dim": 4, "layers": (LayerSpec(),), "ropes": (RopeSpec(4, 1e4),), "context": 64, "norm_eps": 1e-5,
        "attention_scale": 0.5,
    }  # fmt: skip
    return DecoderSpec(**{**values, **changes})


def linear(x: str, output: str, name: str, shape: tuple[int, int], *, bias: bool = False) -> Op:
    return Op("linear", output, (x,), Weight(name, shape), Weight(f"{name}.bias", shape[:1]) if bias else None)


def test_a_llama_layer_op_by_op() -> None:
    """hidden 6, four heads of 4 (so q is 16 wide and not hidden), two kv heads, MLP of 10."""
    at, mlp = "/layers.0/attn", "/layers.0/mlp"
    expected = (
        Op("embed", "/embed", ("/tokens",), Weight("embed", (11, 6))),
        Op("norm", f"{at}_norm", ("/embed",), Weight("layers.0.attn_norm", (6,)), dim=6, eps=1e-5),
        linear(f"{at}_norm", f"{at}/q", "layers.0.attn.q", (16, 6)),
        linear(f"{at}_norm", f"{at}/k", "layers.0.attn.k", (8, 6)),
        linear(f"{at}_norm", f"{at}/v", "layers.0.attn.v", (8, 6)),
        Op("rope", f"{at}/q_rope", (f"{at}/q",), heads=4, dim=4, rotary=4),
        Op("rope", f"{at}/k_rope", (f"{at}/k",), heads=2, dim=4, rotary=4),
        Op("attention", f"{at}/mix", (f"{at}/q_rope", f"{at}/k_rope", f"{at}/v"), heads=4, kv_heads=2, dim=4,
           scale=0.5),
        linear(f"{at}/mix", f"{at}/o", "layers.0.attn.o", (6, 16)),
        Op("add", f"{at}/residual", ("/embed", f"{at}/o")),
        Op("norm", f"{mlp}_norm", (f"{at}/residual",), Weight("layers.0.mlp_norm", (6,)), dim=6, eps=1e-5),
        linear(f"{mlp}_norm", f"{mlp}/gate", "layers.0.mlp.gate", (10, 6)),
        linear(f"{mlp}_norm", f"{mlp}/up", "layers.0.mlp.up", (10, 6)),
        Op("gate", f"{mlp}/act", (f"{mlp}/gate", f"{mlp}/up")),
        linear(f"{mlp}/act", f"{mlp}/down", "layers.0.mlp.down", (6, 10)),
        Op("add", f"{mlp}/residual", (f"{at}/residual", f"{mlp}/down")),
        Op("norm", "/norm", (f"{mlp}/residual",), Weight("norm", (6,)), dim=6, eps=1e-5),
        Op("select", "/select", ("/norm",)),
        Op("linear", "/logits", ("/select",), Weight("head", (11, 6))),
    )  # fmt: skip
    graph = build(make_spec())
    assert graph.ops == expected
    assert graph.widths["/layers.0/attn/mix"] == 16
    assert graph.widths[LOGITS] == 11


def test_a_sandwich_layer_with_everything_on() -> None:
    """Post norms, per-head q/k norms, biases, partial rope, caps, offset norms, a tied head, a layer without rope."""
    spec = make_spec(
        layers=(LayerSpec(window=8, rope=1), LayerSpec(rope=None)), ropes=(RopeSpec(4, 1e4), RopeSpec(2, 1e6)),
        norm_offset=1.0, post_norms=True, qk_norm="head", qkv_bias=True, output_bias=True, mlp_bias=True,
        activation="gelu_tanh", embedding_scale=2.0, attention_softcap=50.0, logit_softcap=30.0, tied_head=True,
    )  # fmt: skip
    ops = {op.output: op for op in build(spec).ops}
    at = "/layers.0/attn"
    assert ops["/embed"].scale == 2.0
    assert ops[f"{at}/k"].bias == Weight("layers.0.attn.k.bias", (8,))
    assert ops[f"{at}/q_norm"] == Op("norm", f"{at}/q_norm", (f"{at}/q",), Weight("layers.0.attn.q_norm", (4,)),
                                     heads=4, dim=4, eps=1e-5, offset=1.0)  # fmt: skip
    assert ops[f"{at}/k_rope"] == Op("rope", f"{at}/k_rope", (f"{at}/k_norm",), heads=2, dim=4, rotary=2, rope=1)
    assert (ops[f"{at}/mix"].ring, ops["/layers.1/attn/mix"].ring) == (0, 1)
    assert (ops["/layers.1/attn/mix"].layer, ops["/layers.1/attn/mix"].softcap) == (1, 50.0)
    assert ops["/layers.1/attn/mix"].inputs == tuple(f"/layers.1/attn/{n}" for n in ("q_norm", "k_norm", "v"))
    assert ops[f"{at}/residual"].inputs == ("/embed", f"{at}_post_norm")
    assert ops["/layers.0/mlp/act"].activation == "gelu_tanh"
    assert ops["/head"].weight == ops["/embed"].weight
    assert ops[LOGITS] == Op("softcap", LOGITS, ("/head",), softcap=30.0)


def test_full_qk_norm_covers_the_projection_and_no_pre_norms_reads_the_stream() -> None:
    ops = {op.output: op for op in build(make_spec(qk_norm="full", pre_norms=False, post_norms=True)).ops}
    norm = ops["/layers.0/attn/k_norm"]
    assert (norm.weight, norm.heads, norm.dim) == (Weight("layers.0.attn.k_norm", (8,)), 1, 8)
    assert ops["/layers.0/attn/q"].inputs == ("/embed",)
    assert "/layers.0/attn_norm" not in ops


def test_weights_come_once_and_siblings_share_their_input() -> None:
    graph = build(make_spec(tied_head=True, qkv_bias=True))
    names = [weight.name for weight in graph.weights]
    assert names[:5] == ["embed", "layers.0.attn_norm", "layers.0.attn.q", "layers.0.attn.q.bias", "layers.0.attn.k"]
    assert names.count("embed") == 1
    assert "head" not in names
    groups = [[op.weight.name.rsplit(".", 1)[-1] for op in group if op.weight] for group in graph.siblings]
    assert groups == [["q", "k", "v"], ["o"], ["gate", "up"], ["down"], ["embed"]]


def broken(output: str, /, **changes: Any) -> Graph:
    """The small graph with one op changed."""
    graph = build(make_spec(layers=(LayerSpec(), LayerSpec(window=8))))
    assert any(op.output == output for op in graph.ops)
    ops = tuple(replace(op, **changes) if op.output == output else op for op in graph.ops)
    return replace(graph, ops=ops)


@pytest.mark.parametrize(
    ("output", "changes", "words"),
    [
        ("/layers.0/mlp/act", {"kind": "swiglu"}, "unknown op kind; known: embed"),
        ("/layers.0/mlp/act", {"inputs": ("/layers.0/mlp/gate", "/nowhere")}, "undefined input /nowhere"),
        ("/layers.0/attn/q", {"inputs": ("/layers.1/attn_norm",)}, "undefined input /layers.1/attn_norm"),
        ("/layers.0/attn/k", {"output": "/layers.0/attn/q"}, "defined twice"),
        ("/layers.0/mlp/act", {"inputs": ("/layers.0/mlp/gate",)}, "1 inputs where it takes 2"),
        ("/norm", {"inputs": ()}, "0 inputs where it takes 1"),
        ("/layers.0/mlp/act", {"inputs": ("/layers.0/mlp/gate",) * 2}, "/layers.0/mlp/up is never used"),
        ("/layers.0/attn/residual", {"inputs": ("/embed", "/layers.0/attn/v")}, "width -1 where 6"),
        ("/embed", {"weight": Weight("embed", (12, 6))}, "width -1 where 6"),
        ("/embed", {"weight": Weight("embed", (11, 7))}, "width 7 where 6"),
        ("/norm", {"weight": Weight("norm", (5,))}, "width -1"),
        ("/norm", {"heads": 2}, "width -1"),
        ("/layers.0/attn/o", {"weight": Weight("o", (6, 15))}, "width -1"),
        ("/layers.0/attn/o", {"weight": None}, "width -1"),
        ("/layers.0/attn/o", {"bias": Weight("o.bias", (5,))}, "width -1"),
        ("/layers.0/attn/q_rope", {"heads": 3}, "width -1"),
        ("/layers.0/attn/q_rope", {"rotary": 6}, "width -1"),
        ("/layers.0/attn/q_rope", {"rope": 1}, "width -1"),
        ("/layers.0/attn/mix", {"kv_heads": 4}, "width -1"),
        ("/layers.0/attn/mix", {"layer": 1}, "layer 1 with ring 0 is not the spec's"),
        ("/layers.1/attn/mix", {"layer": 0, "ring": 0}, "is there twice"),
        ("/layers.1/attn/mix", {"ring": 0}, "layer 1 with ring 0"),
        ("/layers.1/attn/o", {"weight": Weight("layers.0.attn.k", (6, 16))}, "weight layers.0.attn.k is"),
        (LOGITS, {"output": "/other"}, "width 11 where None is declared"),
    ],
)  # fmt: skip
def test_verify_refuses(output: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BundleError, match=words):
        verify(broken(output, **changes))


def test_verify_wants_logits_of_the_whole_vocabulary() -> None:
    graph = build(make_spec())
    narrow = tuple(replace(op, weight=Weight("head", (10, 6))) if op.output == LOGITS else op for op in graph.ops)
    with pytest.raises(BundleError, match="no logits of the vocabulary"):
        verify(replace(graph, ops=narrow, widths={**graph.widths, LOGITS: 10}))
