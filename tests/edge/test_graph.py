"""The Graph: a small decoder written out op by op, and every broken graph that `verify` must refuse."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from edge.decoder import DecoderSpec, RopeSpec
from edge.errors import FormatError
from edge.graph import LOGITS, Graph, build, verify
from edge.layers import Dense, KvSpec, LayerSpec, Mla, Moe
from edge.ops import (
    Add,
    Attention,
    Embed,
    Experts,
    Gate,
    LatentAttention,
    Linear,
    Norm,
    Op,
    Rope,
    Router,
    Select,
    Softcap,
    Weight,
)
from tests.specs import gqa, small_spec


def make_spec(**fields: Any) -> DecoderSpec:
    attention = {"heads": 4, "kv_heads": 2, **fields.pop("attention", {})}
    return small_spec(attention=attention, **{"mlp": {"size": 10}, "vocab_size": 11, "hidden_size": 6, **fields})


def linear(x: str, output: str, weight: Weight) -> Op[Linear]:
    return Op(output, (x,), Linear(weight))


def norm(x: str, output: str, name: str, width: int = 6) -> Op[Norm]:
    return Op(output, (x,), Norm(Weight(name, (width,), "norm"), 1, width, 1e-5))


def test_a_llama_layer_op_by_op() -> None:
    """hidden 6, four heads of 4 (so q is 16 wide and not hidden), two kv heads, MLP of 10."""
    at, mlp = "/layers.0/attn", "/layers.0/mlp"
    a, m = "layers.0.attn", "layers.0.mlp"
    expected = (
        Op("/embed", ("/tokens",), Embed(Weight("embed", (11, 6), "embed"))),
        norm("/embed", f"{at}_norm", f"{a}_norm"),
        linear(f"{at}_norm", f"{at}/q", Weight(f"{a}.q", (16, 6), "query", 4)),
        linear(f"{at}_norm", f"{at}/k", Weight(f"{a}.k", (8, 6), "key", 4)),
        linear(f"{at}_norm", f"{at}/v", Weight(f"{a}.v", (8, 6), "value", 4)),
        Op(f"{at}/q_rope", (f"{at}/q",), Rope(heads=4, dim=4, rope=0, rotary=4)),
        Op(f"{at}/k_rope", (f"{at}/k",), Rope(heads=2, dim=4, rope=0, rotary=4)),
        Op(f"{at}/mix", (f"{at}/q_rope", f"{at}/k_rope", f"{at}/v"),
           Attention(heads=4, kv_heads=2, dim=4, layer=0, group=0, scale=0.5)),
        linear(f"{at}/mix", f"{at}/o", Weight(f"{a}.o", (6, 16), "output", 4)),
        Op(f"{at}/residual", ("/embed", f"{at}/o"), Add()),
        norm(f"{at}/residual", f"{mlp}_norm", f"{m}_norm"),
        linear(f"{mlp}_norm", f"{mlp}/gate", Weight(f"{m}.gate", (10, 6), "gate")),
        linear(f"{mlp}_norm", f"{mlp}/up", Weight(f"{m}.up", (10, 6), "up")),
        Op(f"{mlp}/act", (f"{mlp}/gate", f"{mlp}/up"), Gate("silu")),
        linear(f"{mlp}/act", f"{mlp}/down", Weight(f"{m}.down", (6, 10), "down")),
        Op(f"{mlp}/residual", (f"{at}/residual", f"{mlp}/down"), Add()),
        norm(f"{mlp}/residual", "/norm", "norm"),
        Op("/select", ("/norm",), Select()),
        linear("/select", "/logits", Weight("head", (11, 6), "head")),
    )  # fmt: skip
    graph = build(make_spec())
    assert graph.ops == expected
    assert graph.widths["/layers.0/attn/mix"] == 16
    assert graph.widths[LOGITS] == 11


def test_a_sandwich_layer_with_everything_on() -> None:
    """Post norms, per-head q/k norms, biases, partial rope, caps, offset norms, a tied head, a layer without rope."""
    common = gqa(heads=4, kv_heads=2, qk_norm="head", qkv_bias=True, output_bias=True, softcap=50.0)
    layers = tuple(
        LayerSpec(attention, Dense(10, "gelu_tanh", bias=True))
        for attention in (replace(common, window=8, rope=1), replace(common, rope=None))
    )
    spec = make_spec(
        layers=layers, ropes=(RopeSpec(4, 1e4), RopeSpec(2, 1e6)), norm_offset=1.0, post_norms=True,
        embedding_scale=2.0, logit_softcap=30.0, tied_head=True,
    )  # fmt: skip
    ops: dict[str, Op[Any]] = {op.output: op for op in build(spec).ops}
    at = "/layers.0/attn"
    assert ops["/embed"].attrs.scale == 2.0
    assert ops[f"{at}/k"].attrs.bias == Weight("layers.0.attn.k.bias", (8,), "key", 4)
    assert ops["/layers.0/mlp/down"].attrs.bias == Weight("layers.0.mlp.down.bias", (6,), "down")
    q_norm = Norm(Weight("layers.0.attn.q_norm", (4,), "norm"), vectors=4, dim=4, eps=1e-5, offset=1.0)
    assert ops[f"{at}/q_norm"] == Op(f"{at}/q_norm", (f"{at}/q",), q_norm)
    assert ops[f"{at}/k_rope"] == Op(f"{at}/k_rope", (f"{at}/k_norm",), Rope(heads=2, dim=4, rotary=2, rope=1))
    mixes = [ops[f"/layers.{index}/attn/mix"].attrs for index in (0, 1)]
    assert [(mix.layer, mix.group, mix.window, mix.softcap) for mix in mixes] == [(0, 0, 8, 50.0), (1, 1, None, 50.0)]
    assert ops["/layers.1/attn/mix"].inputs == tuple(f"/layers.1/attn/{n}" for n in ("q_norm", "k_norm", "v"))
    assert ops[f"{at}/residual"].inputs == ("/embed", f"{at}_post_norm")
    assert ops["/layers.0/mlp/act"].attrs == Gate("gelu_tanh")
    assert ops["/head"].attrs.weight == ops["/embed"].attrs.weight
    assert ops[LOGITS] == Op(LOGITS, ("/head",), Softcap(30.0))


def test_layers_may_differ_in_heads_and_sizes() -> None:
    """Two heads of 4 and an MLP of 10, then six heads of 2 over three and an MLP of 3: two KV groups."""
    small = gqa(heads=6, kv_heads=3, head_dim=2)
    spec = make_spec(layers=(LayerSpec(gqa(), Dense(10)), LayerSpec(small, Dense(3))), ropes=(RopeSpec(2, 1e4),))
    graph = build(spec)
    shapes = {weight.name: weight.shape for weight in graph.weights}
    assert (shapes["layers.0.attn.o"], shapes["layers.1.attn.o"]) == ((6, 8), (6, 12))
    assert (shapes["layers.0.mlp.down"], shapes["layers.1.mlp.down"]) == ((6, 10), (6, 3))
    assert [(kv.kv_heads, kv.key_dim) for kv in spec.kv_groups] == [(1, 4), (3, 2)]
    assert [op.attrs.group for op in graph.ops if isinstance(op.attrs, Attention)] == [0, 1]


def test_a_layer_of_experts_op_by_op() -> None:
    """Eight experts of 3 inner numbers, two of them chosen with a bias, and a shared MLP of 5."""
    moe = Moe(8, 2, 3, score="sigmoid", normalize=True, scale=2.5, score_bias=True, groups=4, top_groups=2,
              group_best=2, shared_size=5)  # fmt: skip
    graph = build(make_spec(layers=(LayerSpec(gqa(), moe),)))
    at, m = "/layers.0/mlp", "layers.0.mlp"
    ops = {op.output: op for op in graph.ops}
    assert ops[f"{at}/router"] == linear(f"{at}_norm", f"{at}/router", Weight(f"{m}.router", (8, 6), "router"))
    bias = Weight(f"{m}.router.bias", (8,), "router")
    assert ops[f"{at}/routing"] == Op(
        f"{at}/routing", (f"{at}/router",), Router(2, "sigmoid", True, 2.5, 4, 2, 2, bias)
    )  # fmt: skip
    gate, up = (Weight(f"{m}.experts.{part}", (8, 3, 6), part) for part in ("gate", "up"))  # type: ignore[arg-type]
    down = Weight(f"{m}.experts.down", (8, 6, 3), "down")
    assert ops[f"{at}/experts"] == Op(
        f"{at}/experts", (f"{at}_norm", f"{at}/routing"), Experts(gate, up, down, "silu")
    )  # fmt: skip
    assert ops[f"{at}/shared/down"].attrs == Linear(Weight(f"{m}.shared.down", (6, 5), "down"))
    assert ops[f"{at}/sum"] == Op(f"{at}/sum", (f"{at}/experts", f"{at}/shared/down"), Add())
    assert (graph.widths[f"{at}/routing"], graph.widths[f"{at}/experts"]) == (8, 6)
    assert (gate.stored, down.stored) == ((24, 6), (48, 3))


def test_a_layer_of_latent_attention_op_by_op() -> None:
    """Three heads: 4 + 2 numbers of query and key, values of 5, a latent of 7, queries through a bottleneck of 8."""
    mla = Mla(3, 8, 7, 4, 2, 5, 0.25, norm_eps=1e-3)
    spec = make_spec(layers=(LayerSpec(mla, Dense(10)),), ropes=(RopeSpec(2, 1e4),), norm_offset=1.0)
    ops: dict[str, Op[Any]] = {op.output: op for op in build(spec).ops}
    at, a = "/layers.0/attn", "layers.0.attn"
    assert spec.kv_groups == (KvSpec("latent", 1, 9, 0, None),)
    assert ops[f"{at}/q_nope"] == linear(
        f"{at}/q_down_norm", f"{at}/q_nope", Weight(f"{a}.q_up_nope", (12, 8), "query_nope", 4)
    )  # fmt: skip
    assert ops[f"{at}/latent_norm"].attrs == Norm(Weight(f"{a}.latent_norm", (7,), "norm"), 1, 7, 1e-3)
    assert ops[f"{at}/q_rope_rotated"].attrs == Rope(heads=3, dim=2, rope=0, rotary=2)
    assert ops[f"{at}/k_rope_rotated"] == Op(
        f"{at}/k_rope_rotated", (f"{at}/k_rope",), Rope(heads=1, dim=2, rope=0, rotary=2)
    )  # fmt: skip
    mix = ops[f"{at}/mix"]
    assert mix.inputs == tuple(f"{at}/{name}" for name in ("q_nope", "q_rope_rotated", "latent_norm", "k_rope_rotated"))
    assert mix.attrs == LatentAttention(
        3, 4, 2, 7, 5, 0, 0, 0.25,
        Weight(f"{a}.key_up", (3, 7, 4), "key_up", 7), Weight(f"{a}.value_up", (3, 5, 7), "value_up", 5),
    )  # fmt: skip
    assert ops[f"{at}/o"].attrs == Linear(Weight(f"{a}.o", (6, 15), "output", 5))
    direct = build(replace(spec, layers=(LayerSpec(replace(mla, query_rank=None), Dense(10)),)))
    assert {op.output: op for op in direct.ops}[f"{at}/q_nope"] == linear(
        f"{at}_norm", f"{at}/q_nope", Weight(f"{a}.q_nope", (12, 6), "query_nope", 4)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("output", "changes"),
    [
        ("/layers.0/mlp/routing", {"top_k": 5}),  # of two groups of two
        ("/layers.0/mlp/routing", {"top_k": 0}),
        ("/layers.0/mlp/routing", {"groups": 3}),
        ("/layers.0/mlp/routing", {"group_best": 3}),
        ("/layers.0/mlp/routing", {"bias": Weight("b", (7,), "router")}),
        ("/layers.0/mlp/experts", {"down": Weight("d", (8, 5, 3), "down")}),
        ("/layers.0/mlp/experts", {"up": Weight("u", (7, 3, 6), "up")}),
        ("/layers.0/mlp/experts", {"gate": Weight("g", (24, 6), "gate")}),
        ("/layers.0/attn/mix", {"value_dim": 4}),
        ("/layers.0/attn/mix", {"key_up": Weight("k", (3, 4, 7), "key_up")}),
        ("/layers.0/attn/mix", {"group": 1}),
    ],
)
def test_verify_refuses_experts_and_latents_that_do_not_fit(output: str, changes: dict[str, Any]) -> None:
    moe = Moe(8, 2, 3, groups=4, top_groups=2, group_best=2)
    spec = make_spec(layers=(LayerSpec(Mla(3, None, 7, 4, 2, 5, 0.25), moe),), ropes=(RopeSpec(2, 1e4),))
    with pytest.raises(FormatError, match="width -1"):
        verify(broken(output, changes, build(spec)))


def test_full_qk_norm_covers_the_projection_and_no_pre_norms_reads_the_stream() -> None:
    spec = make_spec(attention={"qk_norm": "full"}, pre_norms=False, post_norms=True)
    ops = {op.output: op for op in build(spec).ops}
    assert ops["/layers.0/attn/k_norm"].attrs == Norm(Weight("layers.0.attn.k_norm", (8,), "norm"), 1, 8, 1e-5)
    assert ops["/layers.0/attn/q"].inputs == ("/embed",)
    assert "/layers.0/attn_norm" not in ops


def test_weights_come_once_and_siblings_share_their_input() -> None:
    graph = build(make_spec(tied_head=True, attention={"qkv_bias": True}))
    names = [weight.name for weight in graph.weights]
    assert names[:5] == ["embed", "layers.0.attn_norm", "layers.0.attn.q", "layers.0.attn.q.bias", "layers.0.attn.k"]
    assert names.count("embed") == 1
    assert "head" not in names
    groups = [[op.attrs.weight.name.rsplit(".", 1)[-1] for op in group] for group in graph.siblings]
    assert groups == [["q", "k", "v"], ["o"], ["gate", "up"], ["down"], ["embed"]]


def broken(output: str, changes: dict[str, Any], graph: Graph | None = None) -> Graph:
    """The graph, by default a small one, with one op changed: fields of the op, or of its attributes."""
    graph = graph or build(make_spec(windows=(None, 8)))
    ops: dict[str, Op[Any]] = {op.output: op for op in graph.ops}
    own = {name: value for name, value in changes.items() if name in ("output", "inputs", "attrs")}
    attrs = {name: value for name, value in changes.items() if name not in own}
    changed = replace(ops[output], **own)
    ops[output] = replace(changed, attrs=replace(changed.attrs, **attrs)) if attrs else changed
    return replace(graph, ops=tuple(ops.values()))


@dataclass(frozen=True)
class Swiglu:
    """A kind of op that nobody knows."""


@pytest.mark.parametrize(
    ("output", "changes", "words"),
    [
        ("/layers.0/mlp/act", {"attrs": Swiglu()}, "Swiglu /layers.0/mlp/act: unknown op kind; known: embed"),
        ("/layers.0/mlp/act", {"inputs": ("/layers.0/mlp/gate", "/nowhere")}, "undefined input /nowhere"),
        ("/layers.0/attn/q", {"inputs": ("/layers.1/attn_norm",)}, "undefined input /layers.1/attn_norm"),
        ("/layers.0/attn/k", {"output": "/layers.0/attn/q"}, "defined twice"),
        ("/layers.0/mlp/act", {"inputs": ("/layers.0/mlp/gate",)}, "1 inputs where it takes 2"),
        ("/norm", {"inputs": ()}, "0 inputs where it takes 1"),
        ("/layers.0/mlp/act", {"inputs": ("/layers.0/mlp/gate",) * 2}, "/layers.0/mlp/up is never used"),
        ("/layers.0/attn/residual", {"inputs": ("/embed", "/layers.0/attn/v")}, "width -1 where 6"),
        ("/embed", {"weight": Weight("embed", (12, 6), "embed")}, "width -1 where 6"),
        ("/embed", {"weight": Weight("embed", (11, 7), "embed")}, "width 7 where 6"),
        ("/norm", {"weight": Weight("norm", (5,), "norm")}, "width -1"),
        ("/norm", {"vectors": 2}, "width -1"),
        ("/layers.0/attn/o", {"weight": Weight("o", (6, 15), "output")}, "width -1"),
        ("/layers.0/attn/o", {"bias": Weight("o.bias", (5,), "output")}, "width -1"),
        ("/layers.0/attn/q_rope", {"heads": 3}, "width -1"),
        ("/layers.0/attn/q_rope", {"rotary": 6}, "width -1"),
        ("/layers.0/attn/q_rope", {"rope": 1}, "width -1"),
        ("/layers.0/attn/mix", {"kv_heads": 4}, "width -1"),
        ("/layers.0/attn/mix", {"layer": 1}, "width -1"),
        ("/layers.1/attn/mix", {"layer": 0, "group": 0, "window": None}, "a second op keeps the tokens of layer 0"),
        ("/layers.1/attn/mix", {"group": 0}, "width -1"),
        ("/layers.1/attn/o", {"weight": Weight("layers.0.attn.k", (6, 16), "output", 4)}, "weight layers.0.attn.k is"),
        (LOGITS, {"output": "/other"}, "width 11 where None is declared"),
    ],
)  # fmt: skip
def test_verify_refuses(output: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(FormatError, match=words):
        verify(broken(output, changes))


def test_verify_wants_logits_of_the_whole_vocabulary() -> None:
    graph = build(make_spec())
    head = Linear(Weight("head", (10, 6), "head"))
    narrow = tuple(replace(op, attrs=head) if op.output == LOGITS else op for op in graph.ops)
    with pytest.raises(FormatError, match="no logits of the vocabulary"):
        verify(replace(graph, ops=narrow, widths={**graph.widths, LOGITS: 10}))


def test_a_mixture_knows_how_many_experts_its_router_chooses() -> None:
    graph = build(make_spec(mlp={"size": 10}))
    names = ("gate", "up", "down")
    experts = Op("/mixed", ("/x", "/routing"), Experts(*(Weight(n, (4, 2, 2), "gate") for n in names), "silu"))
    router = Op("/routing", ("/logits",), Router(3, "softmax", False, 1.0))
    assert replace(graph, ops=(router, experts)).experts_chosen(experts) == 3
    other = Op("/routing", ("/a", "/b"), Add())
    with pytest.raises(FormatError, match="experts /mixed: its second input /routing is no router's output"):
        replace(graph, ops=(other, experts)).experts_chosen(experts)
