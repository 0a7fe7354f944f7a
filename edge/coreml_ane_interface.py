"""The functions of a Core ML package for the Neural Engine, their inputs and outputs: the second kind of package.

Values are [1, channels, 1, S], everything is float16, the host embeds tokens, and logits come in parts of the
vocabulary. There are `decode_T` (S = 1) and `prefill_T` (S = 64, logits of one row).

    x                 [1, hidden, 1, S]              rows of the embedding, not yet scaled
    pick              [1, 1, 1, S]                   prefill only: 1 for the row whose logits are wanted, 0 elsewhere
    cos_R, sin_R      [1, rotary / 2, S]             angles of the new tokens
    mask_G            [1, T, S]                      0 where a query sees a slot of the past, HIDDEN elsewhere
    past_k_G, past_v_G  [layers, kv_heads, T, dim]
    → logits_N        [1, rows, 1, 1]                the N-th VOCABULARY rows of the head
    → new_k_G, new_v_G  [layers, kv_heads, S, dim]
"""

from __future__ import annotations

from edge import coreml_interface
from edge.coreml_interface import Function, Kind, Value
from edge.decoder import DecoderSpec

KINDS: tuple[Kind, ...] = ("prefill", "decode")
PACKAGE = "coreml-ane/decoder.mlpackage"
MODEL = f"{PACKAGE}/Data/com.apple.CoreML/model.mlmodel"
BLOBS = f"{PACKAGE}/Data/com.apple.CoreML/weights/weight.bin"
HIDDEN = -4e4
VOCABULARY = 16_384  # channels of one product, of which the Neural Engine takes no more


def functions(contexts: tuple[int, ...]) -> tuple[Function, ...]:
    return tuple(Function(kind, context) for context in contexts for kind in KINDS)


def parts(spec: DecoderSpec) -> list[tuple[int, int]]:
    """The rows start…stop of each part of the head."""
    starts = range(0, spec.vocab_size, VOCABULARY)
    return [(start, min(start + VOCABULARY, spec.vocab_size)) for start in starts]


def sides(spec: DecoderSpec, function: Function) -> tuple[dict[str, Value], dict[str, Value]]:
    """Inputs and outputs by name, in the order of the function."""
    rows = function.rows
    given = {"x": Value("float16", (1, spec.hidden_size, 1, rows))}
    if function.kind == "prefill":
        given["pick"] = Value("float16", (1, 1, 1, rows))
    for index, rope in enumerate(spec.ropes):
        given |= {f"{part}_{index}": Value("float16", (1, rope.dim // 2, rows)) for part in ("cos", "sin")}
    for index, kv in enumerate(spec.kv_groups):
        given[f"mask_{index}"] = Value("float16", (1, function.slots(kv.window), rows))
    past, new = (
        {name: value for name, value in side.items() if name.startswith(("past", "new"))}
        for side in coreml_interface.sides(spec, function)
    )
    logits = {f"logits_{n}": Value("float16", (1, stop - a, 1, 1)) for n, (a, stop) in enumerate(parts(spec))}
    return {**given, **past}, {**logits, **new}
