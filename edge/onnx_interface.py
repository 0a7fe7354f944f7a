"""The inputs and outputs of a bundle's ONNX graphs: what the emitter declares, and what the ONNX runtime binds.

The graph takes one sequence's new tokens and leaves the ring's bookkeeping to the host:

    tokens            int64 [1, tokens]
    angle_rows        int64 [1, tokens]                0, 1, …: the row of the angles for each new token
    rows              int64 [rows]                     which of the new tokens' logits are wanted
    rope.R.cos, .sin  float [angles, rotary / 2]       a row for each new token (see edge.rope); at least `total` rows
    ring.G.total      int32 scalar                     rows to attend: those held, then the new ones
    ring.G.last       int32 [1]                        total - 1
    ring.G.bias       float [1, 1, tokens, total]      0 where a query sees a row, -inf or very negative elsewhere
    past.L.key, .value     float [1, kv_heads, capacity, dim]
    → logits          float [1, rows, vocab]
    → hidden          float [1, tokens, hidden]        the final norm's output
    → present.L.key, .value                            may share memory with past: new rows follow the held ones

R counts the spec's ropes, G its KV groups, L its layers. The name of a size tells a ring from another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edge.decoder import DecoderSpec


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor's type, and its shape: a number, or the name of a size that differs from call to call."""

    type: Literal["float", "int32", "int64"]
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.type} {list(self.shape)}"


def inputs(spec: DecoderSpec) -> dict[str, Value]:
    """By name, in the order of the graph."""
    found = {
        "tokens": Value("int64", (1, "tokens")),
        "angle_rows": Value("int64", (1, "tokens")),
        "rows": Value("int64", ("rows",)),
    }
    for index, rope in enumerate(spec.ropes):
        for table in ("cos", "sin"):
            found[f"rope.{index}.{table}"] = Value("float", (f"angles.{index}", rope.dim // 2))
    for ring in range(len(spec.kv_groups)):
        found[f"ring.{ring}.total"] = Value("int32", ())
        found[f"ring.{ring}.last"] = Value("int32", (1,))
        found[f"ring.{ring}.bias"] = Value("float", (1, 1, "tokens", f"total.{ring}"))
    return found | _kept(spec, "past")


def outputs(spec: DecoderSpec) -> dict[str, Value]:
    """By name, in the order of the graph."""
    found = {
        "logits": Value("float", (1, "rows", spec.vocab_size)),
        "hidden": Value("float", (1, "tokens", spec.hidden_size)),
    }
    return found | _kept(spec, "present")


def _kept(spec: DecoderSpec, side: str) -> dict[str, Value]:
    """The keys and values of every layer, in the ring of its group."""
    found = {}
    for layer, group in enumerate(spec.layer_groups):
        kv = spec.kv_groups[group]
        for label, dim in (("key", kv.key_dim), ("value", kv.value_dim)):
            found[f"{side}.{layer}.{label}"] = Value("float", (1, kv.kv_heads, f"capacity.{group}", dim))
    return found
