"""Granite 3's mixtures of experts: Granite's multipliers, experts in every layer, fused in tensors of their own names.

The softmax over the chosen logits is that over all of them, divided by the sum of the chosen. Facts: transformers'
GraniteMoeConfig and GraniteMoeModel.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from edge.layers import Moe
from exporters.architectures import granite, names
from exporters.architectures.config import Config
from exporters.architectures.family import Family
from exporters.architectures.spec import read_activation

_EXPERTS = "model.layers.{}.block_sparse_moe."


def _fields(config: Config) -> dict[str, Any]:
    fields = granite.FAMILY.fields(config)
    moe = Moe(
        config.integer("num_local_experts"), config.integer("num_experts_per_tok"), config.integer("intermediate_size"),
        read_activation(config, "hidden_act"), normalize=True,
    )  # fmt: skip
    return {**fields, "layers": tuple(replace(layer, mlp=moe) for layer in fields["layers"])}


def _scales(config: Config) -> dict[str, float]:
    scales = dict(granite.FAMILY.scales(config))
    return {**scales, "mlp.experts.down": scales["mlp.down"]}


FAMILY = Family(
    "granitemoe",
    _fields,
    {"attention_multiplier": 1.0, "num_experts_per_tok": 2, "num_local_experts": 8},
    hugging_face={
        **names.HUGGING_FACE,
        "mlp.router": _EXPERTS + "router.layer",
        **dict.fromkeys(("mlp.experts.gate", "mlp.experts.up"), _EXPERTS + "input_linear"),
        "mlp.experts.down": _EXPERTS + "output_linear",
    },
    scales=_scales,
    gguf_defaults=granite.FAMILY.gguf_defaults,
    interleaved=granite.FAMILY.interleaved,
)
