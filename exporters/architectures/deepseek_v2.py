"""DeepSeek-V2 and V2-Lite: latent attention, and after the first layers experts beside shared ones.

Experts are scored by a softmax; the larger models choose them from the best groups. Facts: transformers'
DeepseekV2Config and DeepseekV2Model.
"""

from __future__ import annotations

from typing import Any

from edge.layers import LayerSpec, Moe
from exporters.architectures import latent
from exporters.architectures.config import Config
from exporters.architectures.family import Family
from exporters.architectures.ropes import read_rope
from exporters.architectures.spec import read_activation, read_dense, read_layers

DEFAULTS = {
    "first_k_dense_replace": 0, "kv_lora_rank": 512, "moe_intermediate_size": 1407, "n_routed_experts": 64,
    "n_shared_experts": 2, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "routed_scaling_factor": 1.0, "topk_method": "greedy", "v_head_dim": 128,
}  # fmt: skip


def read_fields(config: Config, **router: Any) -> dict[str, Any]:
    """The fields of DeepSeek's decoders; `router` holds those of Moe in which versions differ."""
    size, attention = config.integer("moe_intermediate_size"), latent.read_mla(config)
    moe = Moe(
        config.integer("n_routed_experts"), config.integer("num_experts_per_tok"), size,
        read_activation(config, "hidden_act"), scale=config.number("routed_scaling_factor"),
        shared_size=size * config.integer("n_shared_experts"), **router,
    )  # fmt: skip
    dense, first = read_dense(config, {"bias": config.flag("mlp_bias")}), config.get("first_k_dense_replace")
    if type(first) is not int or first < 0:
        raise config.wrong("first_k_dense_replace", first, "a number of layers")
    layers = (LayerSpec(attention, dense if index < first else moe) for index in range(read_layers(config)))
    return {"layers": tuple(layers), "ropes": (read_rope(config, attention.rope_dim),)}


def _fields(config: Config) -> dict[str, Any]:
    if config.flag("norm_topk_prob"):
        raise config.wrong("norm_topk_prob", True, "false: no published model divides the weights by their sum")
    method = config.text("topk_method")
    if method not in ("greedy", "group_limited_greedy"):
        raise config.wrong("topk_method", method, "greedy or group_limited_greedy")
    groups = method == "group_limited_greedy"
    limited = {"groups": config.integer("n_group"), "top_groups": config.integer("topk_group")} if groups else {}
    return read_fields(config, **limited)


FAMILY = Family(
    "deepseek_v2", _fields, DEFAULTS, hugging_face=latent.NAMES, interleaved=("safetensors",), by_head=latent.BY_HEAD
)
