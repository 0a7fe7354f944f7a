"""The one way to open a source model."""

from __future__ import annotations

from pathlib import Path

from edge.errors import CheckpointError, NotFoundError
from edge.paths import expanded
from exporters.checkpoint import Checkpoint
from exporters.checkpoint.gguf import GgufCheckpoint
from exporters.checkpoint.gguf_container import MAGIC
from exporters.checkpoint.safetensors import open_file, open_folder


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a Hugging Face folder, a .safetensors file with its config.json beside it, or a .gguf file.

    Raises NotFoundError for a path that is not there, CheckpointError for a damaged, incomplete or unknown source and
    UnsupportedError for one that cannot be read here; all before any tensor data is read.
    """
    source = expanded(path)
    if source.is_dir():
        return open_folder(source)
    if not source.is_file():
        raise NotFoundError(f"{source}: no such file or folder; give a model folder, a .safetensors or a .gguf file")
    suffix = source.suffix.lower()
    if suffix == ".safetensors":
        return open_file(source)
    if suffix == ".gguf" or _starts_with(source, MAGIC):
        return GgufCheckpoint(source)
    if suffix in (".bin", ".pt", ".pth", ".ckpt"):
        raise CheckpointError(
            f"{source}: pickled weights can run any code when they are read; save the model again with "
            "save_pretrained(safe_serialization=True) and give the folder"
        )
    raise CheckpointError(f"{source}: neither a .safetensors nor a .gguf file; give one, or a model's folder")


def _starts_with(path: Path, magic: bytes) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(len(magic)) == magic
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
