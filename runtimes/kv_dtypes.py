"""How each layer keeps its keys and values: as asked for, but wider where some channels of its keys are much larger."""

from __future__ import annotations

import numpy as np

from edge.bundle import Bundle
from edge.channels import Channels, Float, Makers, channels, makers
from edge.errors import UnsupportedError
from edge.ops import OPS, Attention, LatentAttention, Op

# int8 rounds a key to 1/254 of its row's largest number, which chance makes about three standard deviations. A constant
# above four would cost the others most of their bits: so it is with the biases in the first and last layers of Qwen2.
# Products of bfloat16 pairs, which the engine uses for float16, round each number by up to 1/256 of itself: sums of
# such constants would be off by as much as the rest of them adds up to, so that only float32 serves.
_MOST_CONSTANT = 4.0
# Channels that are large without being constant cost the others bits in int8 alone: float16 serves.
_MOST_UNEVEN = 2.5


def kv_dtypes(bundle: Bundle, wanted: str) -> list[str]:
    """The dtype of each layer: `wanted`, or a wider one where channels of its keys are too large for that.

    Raises UnsupportedError for a kind of op that keeps tokens and is not known here.
    """
    layers = range(len(bundle.spec.layers))
    if wanted == "float32":
        return [wanted for _ in layers]
    found = dict.fromkeys(layers, wanted)
    made = makers(bundle.graph)
    for op in bundle.graph.ops:
        if isinstance(op.attrs, Attention):
            found[op.attrs.layer] = _dtype(bundle, made, op, wanted)
        elif isinstance(op.attrs, LatentAttention):
            found[op.attrs.layer] = _latent_dtype(bundle, made, op, wanted)
        elif OPS[type(op.attrs)].attends:
            raise UnsupportedError(f"how to keep what {op.kind} ({op.output}) keeps of each token is not known")
    return list(found.values())


def _dtype(bundle: Bundle, made: Makers, op: Op[Attention], wanted: str) -> str:
    keys = channels(bundle.weights.read, made, op.inputs[1], op.attrs.kv_heads, op.attrs.dim)
    if _constant(keys) > _MOST_CONSTANT:
        return "float32"
    if wanted == "int8":
        queries = channels(bundle.weights.read, made, op.inputs[0], op.attrs.heads, op.attrs.dim)
        if _uneven(keys.sizes, queries.sizes.reshape(op.attrs.kv_heads, -1, op.attrs.dim)) > _MOST_UNEVEN:
            return "float16"
    return wanted


def _latent_dtype(bundle: Bundle, made: Makers, op: Op[LatentAttention], wanted: str) -> str:
    """float16 latents and rope keys are multiplied as floats: only int8, with a scale for each, may be too coarse."""
    if wanted != "int8":
        return wanted
    for value, dim in ((op.inputs[2], op.attrs.latent_dim), (op.inputs[3], op.attrs.rope_dim)):
        kept = channels(bundle.weights.read, made, value, 1, dim)
        even = np.ones((1, 1, dim), np.float32)
        if _constant(kept) > _MOST_CONSTANT or _uneven(kept.sizes, even) > _MOST_UNEVEN:
            return "float16"
    return wanted


def _constant(keys: Channels) -> float:
    """The largest mean of a channel, in standard deviations of the channels of its head."""
    return _ratio(keys.means.max(axis=1), np.sqrt(np.square(keys.sizes).mean(axis=1)))


def _ratio(largest: Float, typical: Float) -> float:
    """The largest quotient; of two zeros (a matrix of zeros keeps nothing that rounding could cost) it is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.where(largest > 0, largest / typical, np.float32(0)).max())


def _uneven(keys: Float, queries: Float) -> float:
    """How much larger the largest channel of a head's keys is than what its queries weigh most; [kv_heads, group, dim].

    Weighed by the queries, a channel that is large where they are small counts little: rounding is by the largest
    channel, and its error reaches the scores by the queries of all.
    """
    weights = np.square(queries).mean(axis=1)
    total = weights.sum(axis=1)
    seen = (weights * np.square(keys)).sum(axis=1)
    typical = np.sqrt(np.divide(seen, total, out=np.square(keys).mean(axis=1), where=total > 0))
    return _ratio(keys.max(axis=1), typical)
