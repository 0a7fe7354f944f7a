"""OLMo 3: OLMo 2 with a window in three of four layers. Facts: transformers' Olmo3Config and Olmo3Model."""

from __future__ import annotations

from exporters.architectures import olmo2
from exporters.architectures.family import Family

FAMILY = Family(
    "olmo3",
    olmo2.fields,
    {"rms_norm_eps": 1e-5, "rope_theta": 5e5, "sliding_window": 4096},
    hugging_face=olmo2.POST_NORMS,
)
