"""Folders whose weights are already quantized: the formats that can be read, one literal table, and how to tell them.

A format takes the tensors that make up its weights out of those that a folder stores, and gives each weight back as one
tensor that carries its codes where a scheme of the payload holds them exactly, and dequantizes and says so elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from edge.errors import CheckpointError, UnsupportedError
from exporters.checkpoint import SourceTensor, fp8, mlx, packed
from exporters.checkpoint.stored import StoredTensor

KEYS = ("quantization", "quantization_config")  # of a config.json
Assemble = Callable[[dict[str, StoredTensor], Mapping[str, Any], str], dict[str, SourceTensor]]

# quant_method of a quantization_config → format. MLX writes no method.
FORMATS: dict[str, Assemble] = {
    "awq": packed.assemble_awq,
    "compressed-tensors": fp8.assemble,
    "fbgemm_fp8": fp8.assemble,
    "fp8": fp8.assemble,
    "gptq": packed.assemble_gptq,
    "mlx": mlx.assemble,
}


def assemble(stored: dict[str, StoredTensor], config: Mapping[str, Any], where: str) -> dict[str, SourceTensor]:
    """Take the quantized weights out of `stored`, if the config says that there are any; what is left is plain.

    Raises UnsupportedError naming a format that cannot be read, CheckpointError for contradictions.
    """
    settings = next((config[key] for key in KEYS if config.get(key)), None)
    if settings is None:
        return {}
    if not isinstance(settings, dict):
        raise CheckpointError(f"{where}: {KEYS[1]} is {settings!r}; it must be a table of settings")
    method = settings.get("quant_method", "mlx" if "group_size" in settings and "bits" in settings else None)
    # compressed-tensors is a family of formats, of which only its FP8 is stored like the others'.
    other = method == "compressed-tensors" and settings.get("format") != "float-quantized"
    if not isinstance(method, str) or method not in FORMATS or other:
        named = f"{method} with format {settings.get('format')!r}" if other else f"{method!r}"
        raise UnsupportedError(
            f"{where}: quantized by {named}, which cannot be read; known are {', '.join(FORMATS)} "
            "(compressed-tensors: float-quantized); export from the model as it was before it was quantized"
        )
    return FORMATS[method](stored, settings, where)
