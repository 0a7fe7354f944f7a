"""Qwen3-MoE: Qwen3 with experts in most layers. Facts: transformers' Qwen3MoeConfig and Qwen3MoeModel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from edge.layers import Moe
from exporters.architectures import qwen3
from exporters.architectures.config import Config
from exporters.architectures.family import Family
from exporters.architectures.spec import read_activation


def _fields(config: Config) -> dict[str, Any]:
    layers, dense = qwen3.FAMILY.fields(config)["layers"], config.get("mlp_only_layers", [])
    if not isinstance(dense, list) or not all(type(index) is int for index in dense):
        raise config.wrong("mlp_only_layers", dense, "a list of layers")
    period = config.integer("decoder_sparse_step")
    experts = config.optional_integer("num_local_experts") or config.integer("num_experts")  # its newer and older name
    chosen, size = config.integer("num_experts_per_tok"), config.integer("moe_intermediate_size")
    activation, normalize = read_activation(config, "hidden_act"), config.flag("norm_topk_prob")
    moe = Moe(experts, chosen, size, activation, normalize=normalize)
    sparse = (index not in dense and (index + 1) % period == 0 for index in range(len(layers)))
    mixed = (replace(layer, mlp=moe) if is_sparse else layer for layer, is_sparse in zip(layers, sparse, strict=True))
    return {"layers": tuple(mixed)}


FAMILY = Family(
    "qwen3_moe",
    _fields,
    {
        **qwen3.FAMILY.defaults,
        "head_dim": None,
        "decoder_sparse_step": 1,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_key_value_heads": 4,
    },
    gguf_defaults={"norm_topk_prob": True},  # llama.cpp always divides by the sum
)
