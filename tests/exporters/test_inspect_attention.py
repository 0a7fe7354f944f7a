"""How `dsedge inspect` tells a layer's attention."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edge.commands.inspect import _attention
from exporters.architectures import describe
from exporters.checkpoint import Checkpoint
from tests.exporters.tiny import tiny_deepseek_v2


def test_latent_attention_is_told_by_its_latent(tmp_path: Path, opened: Callable[[Path], Checkpoint]) -> None:
    spec = describe(opened(tiny_deepseek_v2(tmp_path))).spec.to_json()
    assert _attention(spec["layers"][0]["attention"]) == "4 heads over a latent of 32"
