"""Hugging Face folders: config.json, one or more safetensors files, tokenizer.json.

Weights that are already quantized are put together by `quantized`; all others are plain numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Any

import numpy as np
import numpy.typing as npt

from edge import texts
from edge.errors import CheckpointError, EdgeError, NotFoundError, UnsupportedError, found_in
from edge.safetensors import TensorInfo, read_header
from exporters.checkpoint import SourceTensor, TokenizerFiles, quantized
from exporters.checkpoint.folder_tokenizer import read_tokenizer
from exporters.checkpoint.sampling import from_generation_config
from exporters.checkpoint.source import PLAIN_DTYPES, SourceFile
from exporters.checkpoint.stored import OneStored, StoredTensor

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_JSON_LIMIT = 256 << 20  # bytes; the index of a model of a trillion parameters has some 10 MB


@dataclass(frozen=True, slots=True)
class SafetensorsTensor(OneStored):
    """A tensor of plain numbers: F32, F16 or BF16."""

    @property
    def note(self) -> str:
        return ""

    def read(self, start: int = 0, stop: int | None = None) -> npt.NDArray[np.float32]:
        """Rows start…stop as float32 [rows, …]."""
        return self.stored.numbers(start, stop)


class SafetensorsCheckpoint:
    """An opened folder. `open_checkpoint` is the way to get one."""

    kind = "safetensors"
    license: str | None = None

    def __init__(self, folder: Path, files: tuple[Path, ...], headers: tuple[dict[str, TensorInfo], ...]) -> None:
        self.path = str(folder)
        self.files = files
        config = read_json(folder / "config.json")
        self.architecture = _architecture(folder, config)
        self._folder = folder
        self._files: list[SourceFile] = []
        try:
            self.tensors: Mapping[str, SourceTensor] = self._read_tensors(config, files, headers)
        except EdgeError:
            self.close()
            raise
        self.config: Mapping[str, Any] = {key: config[key] for key in config if key not in quantized.KEYS}

    def _read_tensors(
        self, config: Mapping[str, Any], files: tuple[Path, ...], headers: tuple[dict[str, TensorInfo], ...]
    ) -> dict[str, SourceTensor]:
        stored: dict[str, StoredTensor] = {}
        for path, header in zip(files, headers, strict=True):
            source = SourceFile(path)
            self._files.append(source)
            for name, info in header.items():
                stored[name] = StoredTensor(name, info.shape, info.dtype, source, info.start)
        tensors = quantized.assemble(stored, config, self.path)
        for name, tensor in stored.items():
            _check_plain(tensor)
            if name in tensors:
                raise CheckpointError(f"{self.path}: tensor {name!r} is there both quantized and plain")
            tensors[name] = SafetensorsTensor(tensor)
        return tensors

    def tokenizer(self) -> TokenizerFiles:
        """Raises CheckpointError when the folder has no tokenizer.json or its parts contradict each other."""
        return read_tokenizer(self._folder, self.config)

    def sampling(self) -> Mapping[str, float]:
        path = self._folder / "generation_config.json"
        return from_generation_config(read_json(path), path) if path.is_file() else {}

    def close(self) -> None:
        for file in self._files:
            file.close()


def open_folder(folder: Path) -> SafetensorsCheckpoint:
    """Open a Hugging Face folder, with every header read and checked first.

    Raises CheckpointError naming the files for a missing config.json or shard, a stale index, a tensor in two shards,
    or a folder without safetensors; UnsupportedError for a quantization format that cannot be read and, outside of
    quantized weights, for tensors that are not F32, F16 or BF16.
    """
    files = _weight_files(folder)
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{folder}: no config.json beside the weights; copy it there from the model's repository")
    headers = tuple(_header(file) for file in files)
    if (folder / INDEX).is_file():
        _check_index(folder, files, headers)
    return SafetensorsCheckpoint(folder, files, headers)


def open_file(path: Path) -> SafetensorsCheckpoint:
    """Open one safetensors file with the config.json beside it; a shard is refused, its folder being the model."""
    folder = path.parent
    index = folder / INDEX
    shards = set(_weight_map(index).values()) if index.is_file() else set()
    if len(shards) > 1 and path.name in shards:
        raise CheckpointError(f"{path}: one shard of several; give the folder {folder} instead")
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{path}: no config.json beside it; copy it there from the model's repository")
    return SafetensorsCheckpoint(folder, (path,), (_header(path),))


def _header(path: Path) -> dict[str, TensorInfo]:
    with found_in(CheckpointError):
        return read_header(path)


def _architecture(folder: Path, config: Mapping[str, Any]) -> str:
    named = config.get("architectures")
    if not isinstance(named, list) or not named or not isinstance(named[0], str):
        raise CheckpointError(f"{folder / 'config.json'}: names no architecture; it needs `architectures`")
    return named[0]


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises CheckpointError for anything else."""
    try:
        size = path.stat().st_size
        if size > _JSON_LIMIT:
            raise CheckpointError(f"{path}: {size} bytes are more than a file of settings can have")
        data = texts.read_json(path)
    except FileNotFoundError as error:
        raise NotFoundError(f"{path}: not there") from error
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{path}: no JSON: {error}") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: holds no JSON object")
    return data


def _weight_files(folder: Path) -> tuple[Path, ...]:
    single, index = folder / SINGLE, folder / INDEX
    if index.is_file():
        if single.is_file() and SINGLE not in _weight_map(index).values():
            raise CheckpointError(f"{folder}: has both {SINGLE} and the shards of {INDEX}; move one of them away")
        return _indexed_files(folder, index)
    if single.is_file():
        return (single,)
    found = sorted(file for file in folder.glob("*.safetensors") if file.is_file())
    if len(found) == 1:
        return (found[0],)
    if found:
        names = ", ".join(file.name for file in found)
        raise CheckpointError(f"{folder}: several safetensors files ({names}) and no {INDEX} to say how they belong")
    pickled = sorted([*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")])
    if pickled:
        raise CheckpointError(
            f"{folder}: only pickled weights ({pickled[0].name}), which can run any code when they are read; "
            "save the model again with save_pretrained(safe_serialization=True)"
        )
    gguf = sorted(folder.glob("*.gguf"))
    hint = f"; give the file itself: {gguf[0]}" if gguf else "; expected model.safetensors or a .gguf file"
    raise CheckpointError(f"{folder}: no safetensors in this folder{hint}")


def _weight_map(index: Path) -> dict[str, str]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: holds no weight_map")
    for name, file in weight_map.items():
        # By the rules of Windows, which know drives and two separators.
        if not isinstance(file, str) or PureWindowsPath(file).name != file or file in ("", ".."):
            raise CheckpointError(f"{index}: tensor {name!r} lies in {file!r}, which is no file name of this folder")
    return weight_map


def _indexed_files(folder: Path, index: Path) -> tuple[Path, ...]:
    names = sorted(set(_weight_map(index).values()))
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(f"{folder}: {len(missing)} of {len(names)} shards are missing: {', '.join(missing)}")
    return tuple(folder / name for name in names)


def _check_index(folder: Path, files: tuple[Path, ...], headers: tuple[dict[str, TensorInfo], ...]) -> None:
    weight_map = _weight_map(folder / INDEX)
    holder: dict[str, str] = {}
    for file, header in zip(files, headers, strict=True):
        for name in header:
            if name in holder:
                raise CheckpointError(f"{folder}: tensor {name!r} is in both {holder[name]} and {file.name}")
            holder[name] = file.name
    for name, file_name in weight_map.items():
        if holder.get(name) != file_name:
            where = f"is in {holder[name]}" if name in holder else "is in none of the shards"
            raise CheckpointError(f"{folder / INDEX}: stale: tensor {name!r} should be in {file_name} but {where}")
    extra = holder.keys() - weight_map.keys()
    if extra:
        name = min(extra)
        raise CheckpointError(f"{folder / INDEX}: stale: it does not name tensor {name!r} of {holder[name]}")


def _check_plain(tensor: StoredTensor) -> None:
    if tensor.dtype not in PLAIN_DTYPES:
        raise UnsupportedError(
            f"{tensor.file.path}: tensor {tensor.name!r} is {tensor.dtype}; supported are {', '.join(PLAIN_DTYPES)}, "
            "and others where the config's quantization_config says what they mean "
            "(export from the model as it was before it was quantized)"
        )
    if not tensor.shape or not all(tensor.shape):
        raise CheckpointError(
            f"{tensor.file.path}: tensor {tensor.name!r} has the shape {list(tensor.shape)}, which holds no rows"
        )
