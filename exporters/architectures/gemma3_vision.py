"""The text decoder of the Gemma 3 models that also take images: the same weights under a longer name.

Facts: transformers' Gemma3Config and the tensors of the published checkpoints.
"""

from __future__ import annotations

from exporters.architectures import gemma2, gemma3
from exporters.architectures.family import Family

FAMILY = Family(
    "gemma3",
    gemma3.fields,
    gemma3.DEFAULTS,
    hugging_face={part: f"language_model.{name}" for part, name in gemma2.SANDWICH.items()},
    section="text_config",
    left_out=("vision_tower.", "multi_modal_projector."),
)
