"""Llama 1 to 3 and the many models of the same shape (SmolLM2, TinyLlama, Falcon 3, …).

Facts: transformers' LlamaConfig.
"""

from __future__ import annotations

from typing import Any

from exporters.architectures.config import Config
from exporters.architectures.family import Family


def _fields(config: Config) -> dict[str, Any]:
    bias = config.flag("attention_bias")
    return {"qkv_bias": bias, "output_bias": bias, "mlp_bias": config.flag("mlp_bias")}


FAMILY = Family("llama", _fields, interleaved=True)
