"""Phi-3, Phi-3.5 and Phi-4-mini: q, k and v in one matrix, gate and up in another; longrope in the long-context models.

Phi-4-mini rotates three quarters of each head. Facts: transformers' Phi3Config and Phi3Attention.
"""

from __future__ import annotations

from typing import Any

from exporters.architectures import names
from exporters.architectures.config import Config
from exporters.architectures.family import Family
from exporters.architectures.ropes import read_rope, settings_of
from exporters.architectures.spec import read_head_dim, read_layer, windowed_layers

_FUSED = {
    **dict.fromkeys(("attn.q", "attn.k", "attn.v"), "model.layers.{}.self_attn.qkv_proj"),
    **dict.fromkeys(("mlp.gate", "mlp.up"), "model.layers.{}.mlp.gate_up_proj"),
}
_FUSED_GGUF = {
    **dict.fromkeys(("attn.q", "attn.k", "attn.v"), "blk.{}.attn_qkv"),
    **dict.fromkeys(("mlp.gate", "mlp.up"), "blk.{}.ffn_up"),
}


def _fields(config: Config) -> dict[str, Any]:
    settings = dict(settings_of(config))
    for key in ("type", "rope_type"):
        if settings.get(key) in ("su", "yarn"):  # what the first checkpoints called longrope
            settings[key] = "longrope"
    window = config.optional_integer("sliding_window")
    return {
        "layers": windowed_layers(config, read_layer(config), window, lambda index: True),
        "ropes": (read_rope(config, read_head_dim(config), settings, partial=True),),
    }


FAMILY = Family(
    "phi3",
    _fields,
    {"original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
    hugging_face={**names.HUGGING_FACE, **_FUSED},
    gguf={**names.GGUF, **_FUSED_GGUF},
    gguf_defaults={"original_max_position_embeddings": None},
)
