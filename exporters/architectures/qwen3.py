"""Qwen3: q and k normalized head by head, head_dim apart from the hidden size, no biases.

Facts: transformers' Qwen3Config.
"""

from __future__ import annotations

from typing import Any

from exporters.architectures import qwen2
from exporters.architectures.config import Config
from exporters.architectures.family import Family
from exporters.architectures.spec import read_layer


def _fields(config: Config) -> dict[str, Any]:
    bias = config.flag("attention_bias")
    layer = read_layer(config, attention={"qk_norm": "head", "qkv_bias": bias, "output_bias": bias})
    return {"layers": qwen2.upper_window(config, layer)}


FAMILY = Family("qwen3", _fields, {**qwen2.DEFAULTS, "head_dim": 128})
