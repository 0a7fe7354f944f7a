from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def folder(llama_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(llama_folder, tmp_path / "model"))
