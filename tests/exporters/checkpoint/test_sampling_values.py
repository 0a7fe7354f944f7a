"""How a source's authors recommend to draw tokens, and where a bundle keeps it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import pytest

import edge
from edge.errors import CheckpointError
from exporters.checkpoint.sampling import from_generation_config, from_gguf

FILE = Path("generation_config.json")
QWEN = {
    "bos_token_id": 5, "do_sample": True, "eos_token_id": [7, 5], "pad_token_id": 5, "repetition_penalty": 1.1,
    "temperature": 0.7, "top_k": 20, "top_p": 0.8, "transformers_version": "4.37.0",
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "sampling"),
    [
        (QWEN, {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.1}),
        ({"do_sample": True, "top_k": 64, "top_p": 0.95}, {"temperature": 1.0, "top_k": 64, "top_p": 0.95}),
        ({"do_sample": True, "temperature": None, "top_k": -1}, {"temperature": 1.0}),
        ({"temperature": 0.6, "top_p": 0.9}, {}),  # transformers is greedy then
        ({"do_sample": False, "temperature": 0.6, "repetition_penalty": 1.05}, {"repetition_penalty": 1.05}),
        ({}, {}),
    ],
)
def test_n13_a_generation_config_counts_as_transformers_takes_it(
    config: dict[str, Any], sampling: dict[str, float]
) -> None:
    assert from_generation_config(config, FILE) == sampling


def test_n13_the_keys_of_a_gguf_file_are_the_gguf_packages() -> None:
    names = gguf.Keys.General
    metadata = {
        names.SAMPLING_TEMP: 0.6000000238418579,
        names.SAMPLING_TOP_K: 20,
        names.SAMPLING_TOP_P: 0.949999988079071,
        names.SAMPLING_MIN_P: 0.05000000074505806,
        names.SAMPLING_PENALTY_REPEAT: 1.100000023841858,
        names.SAMPLING_MIROSTAT: 2,
    }
    found = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.1}
    assert from_gguf(metadata, Path("x.gguf")) == found


def test_n13_values_out_of_range_name_the_file() -> None:
    with pytest.raises(CheckpointError, match=r"generation_config\.json: top_p is 95; it must be between 0 and 1"):
        from_generation_config({"do_sample": True, "top_p": 95}, FILE)


def test_n13_a_bundle_keeps_what_its_source_recommends(llama_folder: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(llama_folder, tmp_path / "source"))
    (source / FILE).write_text(json.dumps(QWEN))
    bundle = edge.export(source, tmp_path / "x.dsedge")
    kept = {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.1}
    assert edge.open_bundle(bundle.path).manifest.sampling == kept
