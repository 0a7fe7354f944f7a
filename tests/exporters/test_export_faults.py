"""What stops an export, and that then nothing appears and nothing that was there is lost."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import edge
from edge.bundle import Bundle, verify_bundle
from edge.errors import CheckpointError, NotFoundError, NumericsError, OptionError, StorageError
from exporters.emit.onnx_model import Model
from exporters.export import export
from tests.exporters.exported import contents
from tests.exporters.tiny import tiny_llama

ROOT = Path(edge.__file__).parents[1]


pytestmark = pytest.mark.usefixtures("cache")


def change(folder: Path, how: Callable[[dict[str, Any]], object]) -> None:
    """Edit the tensors of a folder."""
    tensors = load_file(folder / "model.safetensors")
    how(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


# --- what stops an export -----------------------------------------------------------------------------------------


def refused(tmp_path: Path) -> None:
    """Nothing appeared, and nothing half written stayed."""
    assert [path.name for path in tmp_path.iterdir() if "dsedge" in path.name] == []


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_refused_by_name(value: float, llama_folder: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(llama_folder, tmp_path / "source"))

    def spoil(tensors: dict[str, Any]) -> None:
        tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = value

    change(source, spoil)
    with pytest.raises(CheckpointError, match=r"'model\.layers\.1\.mlp\.up_proj\.weight' holds numbers from"):
        export(source, tmp_path / "x.dsedge")
    refused(tmp_path)


def test_a_graph_that_disagrees_with_the_reference_is_not_shipped(
    llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The emitter made to forget the scale of attention."""
    add = Model.add

    def forgetful(self: Model, op: str, inputs: Any, output: Any, domain: str = "", **attributes: Any) -> str:
        if op == "GroupQueryAttention":
            attributes["scale"] = 1.0
        return add(self, op, inputs, output, domain, **attributes)

    monkeypatch.setattr(Model, "add", forgetful)
    with pytest.raises(
        NumericsError, match=r"runtime onnx, with exact activations, differs from the reference by .* do not ship it"
    ):
        export(llama_folder, tmp_path / "x.dsedge")
    refused(tmp_path)


def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make writing weights a failure of the test."""

    def never(*_: Any) -> Any:
        raise AssertionError("the weights were read")

    monkeypatch.setattr("exporters.export._write_weights", never)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"enders": {5000: ("config.json",)}}, "a bos or eos id is outside the vocabulary"),
        ({"enders": {310: ("config.json",)}}, "eos id 310 is not in the tokenizer, which has 300 tokens"),
        ({"bos": None, "add_bos": True}, "the tokenizer is to add a bos token and none is named"),
        ({"tokenizer": "{}"}, "tokenizer"),
    ],
)
@pytest.mark.parametrize("limit", [None, 0])
def test_n28_what_would_keep_a_bundle_from_opening_is_refused_before_a_weight_is_read(
    change: dict[str, Any], words: str, limit: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a checkpoint's reader has let through, and also where parity would be left out."""
    source = tiny_llama(tmp_path / "source", vocab_size=320)
    unread(monkeypatch)
    monkeypatch.setattr("exporters.export.fit_rows", lambda files, rows, where: replace(files, **change))
    if limit is not None:
        monkeypatch.setattr("exporters.parity.KEEP_LIMIT", limit)
    with pytest.raises(CheckpointError, match=words) as caught:
        export(source, tmp_path / "x.dsedge")
    assert str(caught.value).startswith(str(source))
    refused(tmp_path)


def test_n27_a_template_that_does_not_compile_is_refused_before_a_weight_is_read(
    llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Path(shutil.copytree(llama_folder, tmp_path / "source"))
    (source / "chat_template.jinja").write_text("{% for message in %}")
    unread(monkeypatch)
    with pytest.raises(CheckpointError, match="chat template"):
        export(source, tmp_path / "x.dsedge")
    refused(tmp_path)


def test_n27_a_template_that_takes_no_conversation_is_noted(llama_folder: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(llama_folder, tmp_path / "source"))
    (source / "chat_template.jinja").write_text("{{ 10 ** (10 ** 8) }}")
    notes = export(source, tmp_path / "x.dsedge").manifest.quality.notes
    found = [note for note in notes if note.startswith("the chat template renders no conversation of those")]
    assert len(found) == 1
    assert found[0].endswith("it computes with numbers of more than 16384 bits")


@pytest.mark.parametrize(("part", "value", "fault"), [
    ("lm_head", 0.0, "for every token of the vocabulary"),
    ("lm_head", 0.1, "for every token of the vocabulary"),  # other logits at each position
    ("model.embed_tokens", 0.1, "whatever the text"),
])  # fmt: skip
def test_n40_a_model_that_computes_nothing_is_refused(
    llama_folder: Path, tmp_path: Path, part: str, value: float, fault: str
) -> None:
    source = Path(shutil.copytree(llama_folder, tmp_path / "source"))
    name = f"{part}.weight"
    change(source, lambda tensors: tensors.update({name: tensors[name] * 0 + value}))
    with pytest.raises(CheckpointError, match=f"the model's logits are all alike, {fault}"):
        export(source, tmp_path / "x.dsedge")
    refused(tmp_path)


def test_n40_matrices_of_zeros_are_named(llama_folder: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(llama_folder, tmp_path / "source"))

    def empty(tensors: dict[str, Any]) -> None:
        for part in ("self_attn.q_proj", "mlp.up_proj"):
            tensors[f"model.layers.1.{part}.weight"] *= 0

    change(source, empty)
    notes = export(source, tmp_path / "x.dsedge").manifest.quality.notes
    assert "layers.1.attn.q and 1 more: all zeros in the source: the checkpoint may be damaged" in notes


def test_sources_and_recipes_that_are_not_there(llama_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        export(tmp_path / "absent", tmp_path / "x.dsedge")
    with pytest.raises(NotFoundError, match="no recipe 'nope'"):
        export(llama_folder, tmp_path / "x.dsedge", recipe="nope")
    recipe = tmp_path / "r.toml"
    recipe.write_text('[[rule]]\nmatch = "layers.*"\nscheme = "int4-g32-sym"\n')
    with pytest.raises(OptionError, match="recipe 'r' has no rule for embed"):
        export(llama_folder, tmp_path / "x.dsedge", recipe=recipe)
    refused(tmp_path)


def test_a_folder_that_is_no_bundle_is_left_alone(llama_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.dsedge"
    out.mkdir()
    (out / "thesis.txt").write_text("years of work")
    with pytest.raises(OptionError, match=r"x\.dsedge: exists and is no bundle"):
        export(llama_folder, out)
    assert contents(out).keys() == {"thesis.txt"}


# --- space and kills ----------------------------------------------------------------------------------------------


def test_u7_a_missing_output_folder_is_named(llama_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="absent: no such folder; create it or choose another place for the bundle"):
        export(llama_folder, tmp_path / "absent" / "x.dsedge")


@pytest.mark.parametrize("limit", [40_000, 5_000])
def test_u7_no_space_leaves_the_old_bundle(
    limit: int, llama_bundle: Bundle, llama_folder: Path, tmp_path: Path
) -> None:
    """In a process that may not write larger files: the weights are refused before they are computed."""
    out = Path(shutil.copytree(llama_bundle.path, tmp_path / "tiny.dsedge"))
    before = contents(out)
    done = subprocess.run(
        [sys.executable, "-m", "edge.cli", "export", str(llama_folder), "-o", str(out), "--force"],
        cwd=ROOT, capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip
    assert done.returncode == 2
    assert str(tmp_path) in done.stderr
    assert "Traceback" not in done.stderr
    needed = int(done.stderr.split("weights.safetensors: the file system has no room for it; at least ")[1].split()[0])
    assert needed == llama_bundle.manifest.files["weights.safetensors"].size
    assert contents(verify_bundle(out).path) == before
    assert list(tmp_path.glob(".*.partial*")) == []


LATER = ("tokenizer.json", "decoder-exact.onnx", "decoder.onnx", "quality.json", "manifest.json")


@pytest.mark.parametrize("name", LATER)
def test_u7_a_disk_that_fills_at_a_later_file(
    name: str, llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(method: str) -> None:
        write = getattr(Path, method)

        def full(self: Path, *arguments: Any, **options: Any) -> Any:
            if self.name == name:
                raise OSError(28, os.strerror(28), str(self))
            return write(self, *arguments, **options)

        monkeypatch.setattr(Path, method, full)

    fill("write_bytes")
    fill("write_text")
    with pytest.raises(StorageError, match=r"x\.dsedge: the file system has no room .* at least \d{5,} bytes"):
        export(llama_folder, tmp_path / "x.dsedge")
    refused(tmp_path)


def test_u7_killed_at_any_event_the_old_or_the_new_bundle_is_whole(
    llama_bundle: Bundle, llama_folder: Path, tmp_path: Path
) -> None:
    """See killed_exports.py. What is left beside it opens only if it is whole, and the next export removes it."""
    target = Path(shutil.copytree(llama_bundle.path, tmp_path / "x.dsedge"))
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "killed_exports.py"), str(llama_folder), str(target), "8"],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    outcomes = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    names = [outcome["name"] for outcome in outcomes]
    assert len(names) > 20
    assert names == sorted(names, key=["tiny", "new"].index)  # once published, it stays published
    assert {"tiny", "new"} == set(names)
    left = {name for outcome in outcomes for name in outcome["leftovers"]}
    assert left <= {"BundleError", "NotFoundError", "tiny", "new"}
    assert sum("BundleError" in outcome["leftovers"] for outcome in outcomes) > 5
    assert max(len(outcome["leftovers"]) for outcome in outcomes) == 1
    assert (outcomes[-1]["killed"], outcomes[-1]["leftovers"]) == (False, [])
