"""Folders of tensors that the tests choose."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file


@pytest.fixture
def make(llama_folder: Path, tmp_path: Path) -> Callable[[Mapping[str, Any], Mapping[str, torch.Tensor]], Path]:
    """A folder of these tensors, whose config holds these further keys."""

    def write(config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Path:
        data = json.loads((llama_folder / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(data | dict(config)))
        save_file(dict(tensors), tmp_path / "model.safetensors")
        return tmp_path

    return write
