"""How each variant of a layer's attention and MLP becomes ops: one function a variant, and the table of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from edge.decoder import DecoderSpec
from edge.layers import Dense, Gqa, Mla, Moe
from edge.ops import (
    OPS,
    Add,
    Attention,
    Experts,
    Gate,
    LatentAttention,
    Linear,
    Norm,
    Op,
    Role,
    Rope,
    Router,
    Weight,
)


class Builder:
    """Collects ops for one spec; each method adds one and returns the name of its output."""

    def __init__(self, spec: DecoderSpec) -> None:
        self.spec = spec
        self.ops: list[Op[Any]] = []
        self.widths: dict[str, int] = {}

    def add(self, output: str, inputs: tuple[str, ...], attrs: Any) -> str:
        op = Op(output, inputs, attrs)
        self.ops.append(op)
        self.widths[output] = OPS[type(attrs)].width(attrs, [self.widths.get(name, 0) for name in inputs], self.spec)
        return output

    def norm(self, x: str, output: str, name: str, dim: int | None = None, *, own_eps: float | None = None) -> str:
        """RMS norm of x, over vectors of `dim` (the whole row by default) with one weight of that size.

        `own_eps`: a norm that has nothing in common with the spec's others, neither eps nor offset.
        """
        width = self.widths[x]
        dim = dim or width
        eps, offset = (self.spec.norm_eps, self.spec.norm_offset) if own_eps is None else (own_eps, 0.0)
        return self.add(output, (x,), Norm(Weight(name, (dim,), "norm"), width // dim, dim, eps, offset))

    def rope(self, x: str, output: str, dim: int, rope: int) -> str:
        """x with its heads of `dim` numbers rotated."""
        attrs = Rope(self.widths[x] // dim, dim, rope, self.spec.ropes[rope].dim)
        return self.add(output, (x,), attrs)

    def linear(self, x: str, output: str, weight: Weight, *, bias: bool = False) -> str:
        """x times the transpose of a weight, of which the rows alone are known yet: its columns are the width of x."""
        weight = replace(weight, shape=(*weight.shape, self.widths[x]))
        vector = replace(weight, name=f"{weight.name}.bias", shape=weight.shape[:1]) if bias else None
        return self.add(output, (x,), Linear(weight, vector))


def _gqa(builder: Builder, x: str, index: int, spec: Gqa) -> str:
    path, name, dim = f"/layers.{index}/attn", f"layers.{index}.attn", spec.head_dim
    projections: tuple[tuple[str, Role, int], ...] = (
        ("q", "query", spec.heads), ("k", "key", spec.kv_heads), ("v", "value", spec.kv_heads),
    )  # fmt: skip
    values = {}
    for label, role, heads in projections:
        weight = Weight(f"{name}.{label}", (heads * dim,), role, dim)
        values[label] = builder.linear(x, f"{path}/{label}", weight, bias=spec.qkv_bias)
    for label in ("q", "k"):
        if spec.qk_norm != "none":
            over = dim if spec.qk_norm == "head" else None
            values[label] = builder.norm(values[label], f"{path}/{label}_norm", f"{name}.{label}_norm", over)
        if spec.rope is not None:
            values[label] = builder.rope(values[label], f"{path}/{label}_rope", dim, spec.rope)
    group = builder.spec.layer_groups[index]
    attention = Attention(spec.heads, spec.kv_heads, dim, index, group, spec.scale, spec.window, spec.softcap)
    mixed = builder.add(f"{path}/mix", (values["q"], values["k"], values["v"]), attention)
    output = Weight(f"{name}.o", (builder.spec.hidden_size,), "output", dim)
    return builder.linear(mixed, f"{path}/o", output, bias=spec.output_bias)


def _mla(builder: Builder, x: str, index: int, spec: Mla) -> str:
    path, name, bias = f"/layers.{index}/attn", f"layers.{index}.attn", spec.latent_bias
    source, stem = x, "q"
    if spec.query_rank is not None:
        stem = "q_up"
        source = builder.linear(
            x, f"{path}/q_down", Weight(f"{name}.q_down", (spec.query_rank,), "query_down"), bias=bias
        )
        source = builder.norm(source, f"{path}/q_down_norm", f"{name}.q_down_norm", own_eps=spec.norm_eps)
    projections: tuple[tuple[str, Role, int], ...] = (
        ("nope", "query_nope", spec.nope_dim),
        ("rope", "query_rope", spec.rope_dim),
    )
    q_nope, q_rope = (
        builder.linear(source, f"{path}/q_{label}", Weight(f"{name}.{stem}_{label}", (spec.heads * dim,), role, dim))
        for label, role, dim in projections
    )
    latent = builder.linear(x, f"{path}/latent", Weight(f"{name}.latent", (spec.latent_dim,), "latent"), bias=bias)
    key = Weight(f"{name}.k_rope", (spec.rope_dim,), "key_rope", spec.rope_dim)
    k_rope = builder.linear(x, f"{path}/k_rope", key, bias=bias)
    latent = builder.norm(latent, f"{path}/latent_norm", f"{name}.latent_norm", own_eps=spec.norm_eps)
    q_rope, k_rope = (builder.rope(value, f"{value}_rotated", spec.rope_dim, spec.rope) for value in (q_rope, k_rope))
    attention = LatentAttention(
        spec.heads, spec.nope_dim, spec.rope_dim, spec.latent_dim, spec.value_dim, index,
        builder.spec.layer_groups[index], spec.scale,
        Weight(f"{name}.key_up", (spec.heads, spec.latent_dim, spec.nope_dim), "key_up", spec.latent_dim),
        Weight(f"{name}.value_up", (spec.heads, spec.value_dim, spec.latent_dim), "value_up", spec.value_dim),
    )  # fmt: skip
    mixed = builder.add(f"{path}/mix", (q_nope, q_rope, latent, k_rope), attention)
    output = Weight(f"{name}.o", (builder.spec.hidden_size,), "output", spec.value_dim)
    return builder.linear(mixed, f"{path}/o", output, bias=spec.output_bias)


def _dense(builder: Builder, x: str, index: int, spec: Dense) -> str:
    return _gated(builder, x, f"layers.{index}/mlp", spec)


def _gated(builder: Builder, x: str, place: str, spec: Dense) -> str:
    """A gated MLP whose values and weights are named after a place, such as `layers.3/mlp`."""
    path, name = f"/{place}", place.replace("/", ".")
    gate = builder.linear(x, f"{path}/gate", Weight(f"{name}.gate", (spec.size,), "gate"), bias=spec.bias)
    up = builder.linear(x, f"{path}/up", Weight(f"{name}.up", (spec.size,), "up"), bias=spec.bias)
    inner = builder.add(f"{path}/act", (gate, up), Gate(spec.activation))
    down = Weight(f"{name}.down", (builder.spec.hidden_size,), "down")
    return builder.linear(inner, f"{path}/down", down, bias=spec.bias)


def _moe(builder: Builder, x: str, index: int, spec: Moe) -> str:
    path, name, hidden = f"/layers.{index}/mlp", f"layers.{index}.mlp", builder.spec.hidden_size
    logits = builder.linear(x, f"{path}/router", Weight(f"{name}.router", (spec.experts,), "router"))
    bias = Weight(f"{name}.router.bias", (spec.experts,), "router") if spec.score_bias else None
    router = Router(
        spec.top_k, spec.score, spec.normalize, spec.scale, spec.groups, spec.top_groups, spec.group_best, bias
    )  # fmt: skip
    routing = builder.add(f"{path}/routing", (logits,), router)
    inner, outer = (spec.experts, spec.size, hidden), (spec.experts, hidden, spec.size)
    experts = Experts(
        Weight(f"{name}.experts.gate", inner, "gate"),
        Weight(f"{name}.experts.up", inner, "up"),
        Weight(f"{name}.experts.down", outer, "down"),
        spec.activation,
    )
    mixed = builder.add(f"{path}/experts", (x, routing), experts)
    if not spec.shared_size:
        return mixed
    shared = _gated(builder, x, f"layers.{index}/mlp/shared", Dense(spec.shared_size, spec.activation))
    return builder.add(f"{path}/sum", (mixed, shared), Add())


# (builder, input, number of the layer, spec of the variant) → the value that the branch adds to the residual stream
BRANCHES: dict[type[Any], Callable[[Builder, str, int, Any], str]] = {Gqa: _gqa, Mla: _mla, Dense: _dense, Moe: _moe}
