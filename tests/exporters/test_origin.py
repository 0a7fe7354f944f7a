"""What a manifest says of a bundle's source."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

import edge
from edge.contents import Origin
from exporters.checkpoint.open import open_checkpoint
from exporters.origin import find_origin
from tests.exporters.tiny import write_gguf

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def origin(source: Path) -> Origin:
    checkpoint = open_checkpoint(source)
    try:
        return find_origin(checkpoint)
    finally:
        checkpoint.close()


def test_a_folder_tells_its_license_and_its_revision(llama_folder: Path, tmp_path: Path) -> None:
    sums = {"model.safetensors": hashlib.sha256((llama_folder / "model.safetensors").read_bytes()).hexdigest()}
    assert origin(llama_folder) == Origin("llama", None, None, sums)
    folder = Path(shutil.copytree(llama_folder, tmp_path / "snapshots" / COMMIT))
    (folder / "README.md").write_text("---\nlanguage: en\nlicense: 'apache-2.0'  # ours\n---\nlicense: other\n")
    assert origin(folder) == Origin(COMMIT, COMMIT, "apache-2.0", sums)
    (folder / "README.md").write_text("# A model\nlicense: mit\n")
    assert origin(folder).license is None


def test_a_folder_that_the_hubs_client_filled_tells_its_revision(llama_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(llama_folder, tmp_path / "there"))
    notes = folder / ".cache" / "huggingface" / "download"
    notes.mkdir(parents=True)
    (notes / "config.json.metadata").write_text(f"{COMMIT}\netag\n1.0\n")
    assert origin(folder).revision == COMMIT
    (notes / "config.json.metadata").write_text("what")
    assert origin(folder).revision is None


def test_a_gguf_file_tells_its_license_and_the_manifest_keeps_all_of_it(
    llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSEDGE_CACHE", str(tmp_path / "cache"))
    path = write_gguf(llama_folder, tmp_path / "m.gguf", metadata={"general.license": "gemma"})
    expected = Origin("m.gguf", None, "gemma", {"m.gguf": hashlib.sha256(path.read_bytes()).hexdigest()})
    made = edge.export(path, tmp_path / "x.dsedge")
    assert edge.open_bundle(made.path).manifest.origin == expected
