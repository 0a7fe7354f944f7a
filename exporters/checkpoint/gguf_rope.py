"""The rope scaling of a GGUF file, as the table that a config.json has for it.

Llama 3's scaling is kept as the factors that its formula gives (rope_freqs.weight), longrope's as the two lists of
factors themselves (rope_factors_short.weight, rope_factors_long.weight); the others as parameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.decoder import RopeSpec
from edge.errors import CheckpointError, UnsupportedError
from edge.rope import inverse_frequencies
from exporters.checkpoint import SourceTensor

FACTORS = "rope_freqs.weight"
FACTORS_LIMIT = 1 << 16
SHORT, LONG = "rope_factors_short.weight", "rope_factors_long.weight"

# {architecture}.rope.scaling.KEY → the name in a config.json
KEYS = {
    "type": "rope_type",
    "factor": "factor",
    "original_context_length": "original_max_position_embeddings",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}
# (original context, low and high frequency factors) of the models that were published with Llama 3's scaling
LLAMA3_SHAPES = ((8192, 1.0, 4.0),)


def rope_scaling(
    path: Path,
    arch: str,
    metadata: Mapping[str, Any],
    config: Mapping[str, Any],
    tensors: Mapping[str, SourceTensor],
) -> dict[str, Any] | None:
    """The `rope_scaling` table of a config, None where there is none.

    Raises UnsupportedError for settings that would be lost, CheckpointError for factors that are missing.
    """
    prefix = f"{arch}.rope.scaling."
    scaling = {name: metadata[prefix + key] for key, name in KEYS.items() if prefix + key in metadata}
    older = f"{arch}.rope.scale_linear"
    if older in metadata:
        scaling.setdefault("factor", metadata[older])
    for name, value in scaling.items():
        if isinstance(value, np.ndarray | list):
            raise CheckpointError(f"{path}: the rope scaling's {name} is a list; it must be one value")
    # llama.cpp takes a factor without a type for linear scaling.
    kind = scaling.setdefault("rope_type", "linear" if scaling.get("factor") else "none")
    if SHORT in tensors or LONG in tensors or kind == "longrope":
        attention = metadata.get(f"{prefix}attn_factor", 1.0)
        return {**scaling, **_longrope(path, tensors), "attention_factor": attention}
    _check_attention(path, prefix, metadata, scaling)
    if FACTORS in tensors:
        if kind not in ("none", "llama3"):
            raise UnsupportedError(f"{path}: has both {FACTORS} and rope scaling of type {kind!r}")
        return _llama3(path, config, tensors[FACTORS])
    return None if kind == "none" else scaling


def _check_attention(path: Path, prefix: str, metadata: Mapping[str, Any], scaling: Mapping[str, Any]) -> None:
    """Yarn's attention factor must be the one that follows from its factor; converters write it as that or as 1."""
    usual, factor = [1.0], scaling.get("factor")
    if scaling.get("rope_type") == "yarn" and isinstance(factor, int | float) and factor > 1:
        usual.append(0.1 * math.log(factor) + 1.0)
    for key, allowed in (
        ("attn_factor", usual),
        ("yarn_attn_factor", usual),
        ("yarn_ext_factor", [1.0]),
        ("yarn_log_multiplier", [0.0]),
    ):
        value = metadata.get(prefix + key, allowed[0])
        number = value if isinstance(value, int | float) else math.nan
        if not any(np.isclose(number, known, rtol=1e-5, atol=0.0) for known in allowed):
            raise UnsupportedError(f"{path}: {prefix}{key} is {value!r}, which is not supported (only {allowed} are)")


def _longrope(path: Path, tensors: Mapping[str, SourceTensor]) -> dict[str, Any]:
    missing = [name for name in (SHORT, LONG) if name not in tensors]
    if missing:
        raise CheckpointError(f"{path}: rope scaling of type longrope without the tensor {missing[0]}")
    return {
        "rope_type": "longrope",
        "short_factor": _read_factors(path, tensors[SHORT]).tolist(),
        "long_factor": _read_factors(path, tensors[LONG]).tolist(),
    }


def _read_factors(path: Path, tensor: SourceTensor) -> npt.NDArray[np.float64]:
    """A factor for each pair of a head's dimensions. Raises CheckpointError for more than any head has."""
    if math.prod(tensor.shape) > FACTORS_LIMIT:
        raise CheckpointError(f"{path}: {tensor.name} has the shape {list(tensor.shape)}; no head is that wide")
    return tensor.read().reshape(-1).astype(np.float64)


def _llama3(path: Path, config: Mapping[str, Any], factors: SourceTensor) -> dict[str, Any] | None:
    """The Llama 3 parameters whose formula gives these factors. Raises UnsupportedError if none does.

    The factors were computed in float32 by the converter, hence the tolerance.
    """
    stored = _read_factors(path, factors)
    theta = config.get("rope_theta", 10000.0)
    if not isinstance(theta, int | float) or theta <= 0 or not np.all(stored > 0):
        raise CheckpointError(f"{path}: {FACTORS} and a rope base of {theta!r} give no frequencies")
    largest = float(stored.max())
    if np.all(stored == 1.0):
        return None
    for original, low, high in LLAMA3_SHAPES:
        rope = RopeSpec(2 * len(stored), theta, "llama3", largest, low, high, original)
        if np.allclose(_factors(rope), stored, rtol=1e-5, atol=0.0):
            return {
                "rope_type": "llama3",
                "factor": largest,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": original,
            }
    raise UnsupportedError(
        f"{path}: {FACTORS} holds frequency factors up to {largest:g} that are not those of Llama 3.1's formula "
        f"(original context {', '.join(str(shape[0]) for shape in LLAMA3_SHAPES)}); export from the safetensors model"
    )


def _factors(rope: RopeSpec) -> npt.NDArray[np.float64]:
    """What the plain frequencies are divided by."""
    return np.asarray(inverse_frequencies(replace(rope, kind="default")) / inverse_frequencies(rope))
