"""OLMoE: experts in every layer, q and k normalized whole. Facts: transformers' OlmoeConfig and OlmoeModel."""

from __future__ import annotations

from typing import Any

from edge.layers import LayerSpec, Moe
from exporters.architectures.config import Config
from exporters.architectures.family import Family
from exporters.architectures.spec import read_activation, read_gqa, repeat


def _fields(config: Config) -> dict[str, Any]:
    if config.get("clip_qkv") is not None:
        raise config.wrong("clip_qkv", config.get("clip_qkv"), "null: clipped q, k and v are not supported")
    bias = config.flag("attention_bias")
    moe = Moe(
        config.integer("num_experts"), config.integer("num_experts_per_tok"), config.integer("intermediate_size"),
        read_activation(config, "hidden_act"), normalize=config.flag("norm_topk_prob"),
    )  # fmt: skip
    attention = read_gqa(config, {"qk_norm": "full", "qkv_bias": bias, "output_bias": bias})
    return {"layers": repeat(config, LayerSpec(attention, moe))}


FAMILY = Family("olmoe", _fields, {"num_experts": 64, "num_experts_per_tok": 8, "rms_norm_eps": 1e-5})
