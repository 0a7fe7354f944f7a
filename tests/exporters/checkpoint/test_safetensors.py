"""Hugging Face folders: numbers, shards, and every way in which a folder can be incomplete."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from edge.errors import CheckpointError, NotFoundError, UnsupportedError
from exporters.checkpoint import Checkpoint
from tests.exporters.tiny import load_reference
from tests.fuzz.limits import bounded_memory

Open = Callable[[Path], Checkpoint]


@pytest.fixture
def shards(llama_folder: Path, tmp_path: Path) -> Path:
    """The tiny Llama in three shards."""
    load_reference(llama_folder).save_pretrained(tmp_path, max_shard_size="160KB")
    assert len(list(tmp_path.glob("model-*-of-00003.safetensors"))) == 3
    return tmp_path


def edit(path: Path, change: Callable[[dict], object]) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_numbers_are_widened_exactly(llama_folder: Path, tmp_path: Path, opened: Open, dtype: torch.dtype) -> None:
    weight = torch.randn(40, 24, generator=torch.Generator().manual_seed(1)).to(dtype)
    weight[0, :4] = torch.tensor([0.0, -0.0, 1e-40, 65000.0]).to(dtype)
    shutil.copy(llama_folder / "config.json", tmp_path)
    save_file({"first": torch.ones(3, dtype=dtype), "weight": weight}, tmp_path / "model.safetensors")
    tensor = opened(tmp_path).tensors["weight"]
    expected = weight.float().numpy()
    assert tensor.scheme is None
    np.testing.assert_array_equal(tensor.read(), expected)
    np.testing.assert_array_equal(tensor.read(7, 19), expected[7:19])
    assert tensor.read(5, 5).shape == (0, 24)
    with pytest.raises(IndexError):
        tensor.read(0, 41)


def test_sharded_equals_single(llama_folder: Path, shards: Path, opened: Open) -> None:
    expected = load_file(llama_folder / "model.safetensors")
    tensors = opened(shards).tensors
    assert tensors.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(tensors[name].read(), value.numpy())


def test_c2_missing_shards_are_all_named(shards: Path, opened: Open) -> None:
    for number in (1, 3):
        (shards / f"model-0000{number}-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"2 of 3 shards are missing: model-00001.*, model-00003"):
        opened(shards)


def test_c2_index_that_names_a_tensor_no_shard_has(shards: Path, opened: Open) -> None:
    index = shards / "model.safetensors.index.json"
    first = "model-00001-of-00003.safetensors"
    edit(index, lambda data: data["weight_map"].update({"model.layers.9.mlp.up_proj.weight": first}))
    with pytest.raises(CheckpointError, match=r"stale: tensor 'model\.layers\.9\.mlp.*in none of the shards"):
        opened(shards)


def test_c2_index_that_lacks_a_tensor_of_a_shard(shards: Path, opened: Open) -> None:
    edit(shards / "model.safetensors.index.json", lambda data: data["weight_map"].pop("model.norm.weight"))
    with pytest.raises(CheckpointError, match=r"stale: it does not name tensor 'model\.norm\.weight' of model-0000"):
        opened(shards)


def test_c2_tensor_in_two_shards(shards: Path, opened: Open) -> None:
    index = json.loads((shards / "model.safetensors.index.json").read_text())
    holder = index["weight_map"]["model.norm.weight"]
    other = next(name for name in sorted(set(index["weight_map"].values())) if name != holder)
    tensors = load_file(shards / other)
    save_file({**tensors, "model.norm.weight": torch.zeros(64)}, shards / other)
    with pytest.raises(CheckpointError, match=r"'model\.norm\.weight' is in both model-0000. *"):
        opened(shards)


@pytest.mark.parametrize("place", ["../model.safetensors", "..", "a/b", "a\\b", "C:model.safetensors", "C:\\m", ""])
def test_index_that_leaves_the_folder(shards: Path, opened: Open, place: str) -> None:
    def leave(data: dict) -> None:
        data["weight_map"]["lm_head.weight"] = place

    edit(shards / "model.safetensors.index.json", leave)
    with pytest.raises(CheckpointError, match="no file name of this folder"):
        opened(shards)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no named pipes in folders")
def test_a_pipe_is_no_checkpoint(tmp_path: Path, opened: Open) -> None:
    """Opening it would wait for a writer for ever."""
    os.mkfifo(tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="no safetensors in this folder"):
        opened(tmp_path)


def test_a_config_of_a_gigabyte_is_not_read(llama_folder: Path, tmp_path: Path, opened: Open) -> None:
    shutil.copy(llama_folder / "model.safetensors", tmp_path)
    with open(tmp_path / "config.json", "wb") as file:
        file.truncate(1 << 30)  # nothing on the disk, and zeros when it is read
    with bounded_memory(256 << 20), pytest.raises(CheckpointError, match="1073741824 bytes are more than a file of"):
        opened(tmp_path)


def test_shards_without_their_index(shards: Path, opened: Open) -> None:
    (shards / "model.safetensors.index.json").unlink()
    with pytest.raises(CheckpointError, match=r"several safetensors files \(model-00001.*model-00003"):
        opened(shards)


def test_index_beside_a_single_file(llama_folder: Path, shards: Path, opened: Open) -> None:
    shutil.copy(llama_folder / "model.safetensors", shards)
    with pytest.raises(CheckpointError, match=r"both model\.safetensors and the shards of"):
        opened(shards)
    for shard in shards.glob("model-*.safetensors"):
        shard.unlink()
    index = shards / "model.safetensors.index.json"
    edit(index, lambda data: data["weight_map"].update(dict.fromkeys(data["weight_map"], "model.safetensors")))
    for path in (shards, shards / "model.safetensors"):
        assert len(opened(path).tensors) == 21
    edit(index, lambda data: data["weight_map"].pop("lm_head.weight"))
    with pytest.raises(CheckpointError, match="stale: it does not name tensor 'lm_head"):
        opened(shards)


def test_one_shard_is_not_a_model(shards: Path, opened: Open) -> None:
    with pytest.raises(CheckpointError, match="one shard of several; give the folder"):
        opened(shards / "model-00002-of-00003.safetensors")


def test_single_file_takes_the_config_beside_it(llama_folder: Path, opened: Open) -> None:
    checkpoint = opened(llama_folder / "model.safetensors")
    assert checkpoint.architecture == "LlamaForCausalLM"
    assert checkpoint.config["hidden_size"] == 64


def test_pickled_weights_are_refused_with_the_way_out(llama_folder: Path, tmp_path: Path, opened: Open) -> None:
    shutil.copy(llama_folder / "config.json", tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04")
    (tmp_path / "MODEL.PTH").write_bytes(b"\x80\x04")
    for path in (tmp_path, tmp_path / "pytorch_model.bin", tmp_path / "MODEL.PTH"):
        with pytest.raises(CheckpointError, match=r"pickled.*save_pretrained\(safe_serialization=True\)"):
            opened(path)


def test_incomplete_folders(llama_folder: Path, tmp_path: Path, opened: Open) -> None:
    with pytest.raises(NotFoundError, match="no such file or folder"):
        opened(tmp_path / "absent")
    with pytest.raises(CheckpointError, match="no safetensors in this folder"):
        opened(tmp_path)
    (tmp_path / "some.gguf").touch()
    with pytest.raises(CheckpointError, match=r"give the file itself: .*some\.gguf"):
        opened(tmp_path)
    shutil.copy(llama_folder / "model.safetensors", tmp_path)
    for path in (tmp_path, tmp_path / "model.safetensors"):
        with pytest.raises(CheckpointError, match=r"no config\.json"):
            opened(path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(CheckpointError, match=r"config\.json: holds no JSON object"):
        opened(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="names no architecture"):
        opened(tmp_path)


def test_truncated_file_names_the_tensor(llama_folder: Path, tmp_path: Path, opened: Open) -> None:
    shutil.copytree(llama_folder, tmp_path, dirs_exist_ok=True)
    data = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(data[:-1])
    with pytest.raises(CheckpointError, match=rf"truncated: tensor '.*' ends at byte {len(data)}.*{len(data) - 1}"):
        opened(tmp_path)


def test_file_cut_after_it_was_opened(llama_folder: Path, tmp_path: Path, opened: Open) -> None:
    shutil.copytree(llama_folder, tmp_path, dirs_exist_ok=True)
    tensors = opened(tmp_path).tensors
    last = list(tensors)[-1]
    with open(tmp_path / "model.safetensors", "r+b") as file:
        file.truncate((tmp_path / "model.safetensors").stat().st_size - 4)
    with pytest.raises(CheckpointError, match=f"truncated while it was read: tensor '{last}'"):
        tensors[last].read()


def test_quantized_dtypes_are_refused_before_any_work(llama_folder: Path, tmp_path: Path, opened: Open) -> None:
    shutil.copy(llama_folder / "config.json", tmp_path)
    save_file({"layer.qweight": torch.zeros(4, 4, dtype=torch.int32)}, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedError, match=r"'layer\.qweight' is I32; supported are F32, F16, BF16"):
        opened(tmp_path)
