"""The functions of a bundle's Core ML package, their inputs and outputs: what the emitter declares and runtimes feed.

A function is fixed in its context (T slots of the past) and its rows (S new tokens of one sequence):

    decode_T     S = 1, logits of the row
    prefill_T    S = 64, logits of the row `last`; a shorter prompt is padded on the right
    score_T      S = 64, logits and final norm of every row: evaluation and verification

    tokens            int32 [S]
    last              int32 [1]                      prefill only: the row whose logits are wanted
    cos_R, sin_R      float32 [S, rotary / 2]        angles of the new tokens (see edge.rope)
    mask_G            float16 [S, T]                 0 where a query sees a slot of the past, HIDDEN elsewhere
    past_k_G          float16 [layers, kv_heads, T, key_dim]      keys after RoPE, in any order of slots
    past_v_G          float16 [layers, kv_heads, T, value_dim]    absent where the keys are latents
    → logits          float16 [1 or S, vocab]
    → hidden          float32 [S, hidden]            score only
    → new_k_G, new_v_G  float16 [layers, kv_heads, S, dim]        the new rows, for the host to keep

R counts the spec's ropes, G its KV groups; `layers` are those of the group, in order. New rows see each other by
position, within the group's window, so the mask says nothing about them. A group with a window has fewer slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from edge.decoder import DecoderSpec

Kind = Literal["prefill", "decode", "score"]
KINDS: tuple[Kind, ...] = ("prefill", "decode", "score")
PACKAGE = "coreml/decoder.mlpackage"
MODEL = f"{PACKAGE}/Data/com.apple.CoreML/model.mlmodel"
BLOBS = f"{PACKAGE}/Data/com.apple.CoreML/weights/weight.bin"
RANGES = "coreml/ranges.json"  # value of the graph → its largest magnitude on the text of the parity check
GOLDEN = "coreml/golden.safetensors"
CHUNK = 64  # rows of prefill and score
LANES = 32  # slots come in multiples of it
HIDDEN = -1e4  # exact in float16, far below any score that is computed in it, far from its end


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor's type and shape."""

    dtype: Literal["float16", "float32", "int32"]
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Function:
    """One function of a package: what it is for, and the tokens of the past that it sees at most."""

    kind: Kind
    context: int

    @property
    def name(self) -> str:
        return f"{self.kind}_{self.context}"

    @property
    def rows(self) -> int:
        """How many new tokens it takes."""
        return 1 if self.kind == "decode" else min(CHUNK, self.context)

    def slots(self, window: int | None) -> int:
        """The slots of a group: a window and a chunk's slack where the group has one."""
        if window is None:
            return self.context
        return min(self.context, -(-(window + CHUNK) // LANES) * LANES)


def functions(contexts: Sequence[int]) -> tuple[Function, ...]:
    """All functions of a package with these contexts."""
    return tuple(Function(kind, context) for context in contexts for kind in KINDS)


def inputs(spec: DecoderSpec, function: Function) -> dict[str, Value]:
    """By name, in the order of the function."""
    rows = function.rows
    found = {"tokens": Value("int32", (rows,))}
    if function.kind == "prefill":
        found["last"] = Value("int32", (1,))
    for index, rope in enumerate(spec.ropes):
        for part in ("cos", "sin"):
            found[f"{part}_{index}"] = Value("float32", (rows, rope.dim // 2))
    for index, kv in enumerate(spec.kv_groups):
        found[f"mask_{index}"] = Value("float16", (rows, function.slots(kv.window)))
    for index, kv in enumerate(spec.kv_groups):
        found |= _kept(spec, index, "past", function.slots(kv.window))
    return found


def outputs(spec: DecoderSpec, function: Function) -> dict[str, Value]:
    """By name, in the order of the function."""
    rows = function.rows
    found = {"logits": Value("float16", (rows if function.kind == "score" else 1, spec.vocab_size))}
    if function.kind == "score":
        found["hidden"] = Value("float32", (rows, spec.hidden_size))
    for index in range(len(spec.kv_groups)):
        found |= _kept(spec, index, "new", rows)
    return found


def sides(spec: DecoderSpec, function: Function) -> tuple[dict[str, Value], dict[str, Value]]:
    """Inputs and outputs."""
    return inputs(spec, function), outputs(spec, function)


def _kept(spec: DecoderSpec, group: int, side: str, slots: int) -> dict[str, Value]:
    kv, layers = spec.kv_groups[group], spec.layer_groups.count(group)
    dims = {"k": kv.key_dim, "v": kv.value_dim}
    return {
        f"{side}_{part}_{group}": Value("float16", (layers, kv.kv_heads, slots, dim))
        for part, dim in dims.items()
        if dim
    }
