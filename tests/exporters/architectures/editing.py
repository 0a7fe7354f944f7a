"""Checkpoints of tiny models, opened after something in them was changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from exporters.checkpoint import Checkpoint

Open = Callable[[Path], Checkpoint]


def edit_config(folder: Path, *drop: str, **values: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    for key in drop:
        config.pop(key)
    (folder / "config.json").write_text(json.dumps({**config, **values}))


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
