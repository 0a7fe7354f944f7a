"""Latent attention in configs and checkpoints: keys and names of DeepSeek. Facts: transformers' DeepseekV2Attention."""

from __future__ import annotations

import math

from edge.layers import Mla
from exporters.architectures import names
from exporters.architectures.config import Config
from exporters.architectures.ropes import settings_of

_ATTENTION = "model.layers.{}.self_attn."
NAMES = {
    **names.HUGGING_FACE,
    "attn.q_down": _ATTENTION + "q_a_proj",
    "attn.q_down_norm": _ATTENTION + "q_a_layernorm",
    **dict.fromkeys(("attn.q_nope", "attn.q_rope"), _ATTENTION + "q_proj"),
    **dict.fromkeys(("attn.q_up_nope", "attn.q_up_rope"), _ATTENTION + "q_b_proj"),
    **dict.fromkeys(("attn.latent", "attn.k_rope"), _ATTENTION + "kv_a_proj_with_mqa"),
    "attn.latent_norm": _ATTENTION + "kv_a_layernorm",
    **dict.fromkeys(("attn.key_up", "attn.value_up"), _ATTENTION + "kv_b_proj"),
}
BY_HEAD = ("attn.q_nope", "attn.q_rope", "attn.q_up_nope", "attn.q_up_rope", "attn.key_up", "attn.value_up")


def read_mla(config: Config) -> Mla:
    """Latent attention; yarn's magnitude over all dimensions, where it is given, multiplies the scores twice."""
    nope, rotated, bias = (
        config.integer("qk_nope_head_dim"),
        config.integer("qk_rope_head_dim"),
        config.flag("attention_bias"),
    )
    scale, settings = (nope + rotated) ** -0.5, Config(config.path, settings_of(config), {})
    kind = settings.text("rope_type", settings.text("type", "default"))
    if kind != "default" and settings.get("mscale_all_dim"):
        factor = settings.number("factor")
        scale *= (0.1 * settings.number("mscale_all_dim") * math.log(factor) + 1.0) ** 2 if factor > 1 else 1.0
    return Mla(
        config.integer("num_attention_heads"), config.optional_integer("q_lora_rank"), config.integer("kv_lora_rank"),
        nope, rotated, config.integer("v_head_dim"), scale, latent_bias=bias, output_bias=bias,
    )  # fmt: skip
