"""Small DecoderSpecs for tests, and changes to every layer of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from edge.decoder import DecoderSpec, RopeSpec
from edge.graph import Graph
from edge.layers import Dense, Gqa, LayerSpec
from edge.payload import Layout, Run

_ATTENTION = {"heads": 2, "kv_heads": 1, "head_dim": 4, "scale": 0.5}


def gqa(**fields: Any) -> Gqa:
    return Gqa(**{**_ATTENTION, **fields})


def small_spec(
    *, windows: Sequence[int | None] = (None,), attention: Mapping[str, Any] | None = None,
    mlp: Mapping[str, Any] | None = None, **fields: Any,
) -> DecoderSpec:  # fmt: skip
    """A spec of a layer a window; the mappings are fields of every layer's Gqa and Dense, the rest of DecoderSpec."""
    parts, dense = {**_ATTENTION, **(attention or {})}, Dense(**{"size": 8, **(mlp or {})})
    values: dict[str, Any] = {
        "family": "test", "vocab_size": 16, "hidden_size": 8, "context": 64, "norm_eps": 1e-5,
        "layers": tuple(LayerSpec(Gqa(**{**parts, "window": window}), dense) for window in windows),
        "ropes": (RopeSpec(parts["head_dim"], 1e4),),
    }  # fmt: skip
    return DecoderSpec(**{**values, **fields})


def with_attention(spec: DecoderSpec, **fields: Any) -> DecoderSpec:
    """The spec with other fields of every layer's attention."""
    layers = (replace(layer, attention=replace(layer.attention, **fields)) for layer in spec.layers)
    return replace(spec, layers=tuple(layers))


NOTHING: Mapping[str, str] = {}


def runs_of(graph: Graph, layout: str, others: Mapping[str, str] = NOTHING) -> dict[str, tuple[Run, ...]]:
    """What each weight of a graph is stored in under one layout; `others` are the layouts of some weights by name."""
    return {w.name: Layout.parse(others.get(w.name, layout)).split(w.name, w.stored) for w in graph.weights}
