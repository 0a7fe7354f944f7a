"""How each layer keeps its keys and values: as asked for, but in float32 where its keys have channels too large."""

from __future__ import annotations

import numpy as np

from edge.bundle import Bundle
from edge.errors import UnsupportedError
from edge.layers import Gqa

# int8 rounds a key to 1/254 of its row's largest number, which chance makes about three standard deviations. A constant
# above four would cost the others most of their bits: so it is with the biases in the first and last layers of Qwen2.
# Products of bfloat16 pairs, which the engine uses for float16, round each number by up to 1/256 of itself: sums of
# such constants would be off by as much as the rest of them adds up to.
_MOST = 4.0


def kv_dtypes(bundle: Bundle, wanted: str) -> list[str]:
    """The dtype of each layer: `wanted`, or float32 where its keys have channels too large."""
    if wanted == "float32":
        return [wanted] * len(bundle.spec.layers)
    return ["float32" if _outlying(bundle, layer) > _MOST else wanted for layer in range(len(bundle.spec.layers))]


def _outlying(bundle: Bundle, layer: int) -> float:
    """The largest constant of a channel of keys, in standard deviations of the channels of its head.

    From the weights alone, for inputs that a norm leaves with a variance of 1 in each column. The keys' own norm takes
    a bias away and multiplies each channel by a constant.
    """
    weights, spec, name = bundle.weights, bundle.spec, f"layers.{layer}.attn"
    attention = spec.layers[layer].attention
    if not isinstance(attention, Gqa):
        raise UnsupportedError(f"the native engine keeps no keys of layer {layer}, whose attention is {attention}")
    if attention.qk_norm != "none":
        spread = weights.read(f"{name}.k_norm") + np.float32(spec.norm_offset)
        constants = spread = spread.reshape(-1, attention.head_dim)
    elif f"{name}.k.bias" in weights.shapes:
        columns = weights.read(f"{name}_norm") + np.float32(spec.norm_offset) if spec.pre_norms else np.float32(1)
        spread = np.linalg.norm(weights.read(f"{name}.k") * columns, axis=1).reshape(-1, attention.head_dim)
        constants = weights.read(f"{name}.k.bias").reshape(spread.shape)
    else:
        return 0.0
    return float((np.abs(constants).max(axis=1) / np.sqrt(np.square(spread).mean(axis=1))).max())
