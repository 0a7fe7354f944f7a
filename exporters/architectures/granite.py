"""Granite 3: a Llama whose embedding, attention, residual branches and logits are each scaled by a given number.

The numbers that the spec has no field for are multiplied into weights: the branches' into their last matrix, the
logits' into the final norm. Facts: transformers' GraniteConfig and GraniteModel.
"""

from __future__ import annotations

from typing import Any

from exporters.architectures import llama
from exporters.architectures.config import Config
from exporters.architectures.family import Family
from exporters.architectures.spec import read_head_dim, repeat


def _fields(config: Config) -> dict[str, Any]:
    scale = config.number("attention_multiplier", read_head_dim(config) ** -0.5)
    return {
        "embedding_scale": config.number("embedding_multiplier", 1.0),
        "layers": repeat(config, llama.layer(config, scale=scale)),
    }


def _scales(config: Config) -> dict[str, float]:
    branch = config.number("residual_multiplier", 1.0)
    return {"attn.o": branch, "mlp.down": branch, "norm": 1.0 / config.number("logits_scaling", 1.0)}


FAMILY = Family(
    "granite",
    _fields,
    {"attention_multiplier": 1.0},
    scales=_scales,
    gguf_defaults={"attention_multiplier": None},  # absent in a GGUF file: llama.cpp then scales by 1 / sqrt(head_dim)
    interleaved=("gguf",),
)
