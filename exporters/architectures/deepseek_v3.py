"""DeepSeek-V3 and R1: V2's attention; experts are scored by a sigmoid and ranked with a bias, from the best groups.

The layers behind the last one, which predict further tokens, are not exported. Facts: transformers'
DeepseekV3Config and DeepseekV3Model.
"""

from __future__ import annotations

from typing import Any

from exporters.architectures import deepseek_v2, latent
from exporters.architectures.config import Config
from exporters.architectures.family import Family


def _fields(config: Config) -> dict[str, Any]:
    if not config.flag("rope_interleave", True):
        raise config.wrong("rope_interleave", False, "true, as in all published models")
    return deepseek_v2.read_fields(
        config, score="sigmoid", score_bias=True, normalize=config.flag("norm_topk_prob", True),
        groups=config.integer("n_group"), top_groups=config.integer("topk_group"), group_best=2,
    )  # fmt: skip


FAMILY = Family(
    "deepseek_v3",
    _fields,
    {
        **deepseek_v2.DEFAULTS, "first_k_dense_replace": 3, "moe_intermediate_size": 2048, "n_group": 8,
        "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "routed_scaling_factor": 2.5,
        "topk_group": 4,
    },
    hugging_face={**latent.NAMES, "mlp.router.bias": "model.layers.{}.mlp.gate.e_score_correction_bias"},
    left_out=("model.layers.{}.",),
    interleaved=("safetensors",),
    by_head=latent.BY_HEAD,
)  # fmt: skip
