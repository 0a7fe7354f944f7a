"""The export as a whole, over tiny checkpoints: what a bundle holds, and that it is the same every time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import onnxruntime
import pytest
from safetensors.numpy import load_file

import edge
from edge.bundle import Bundle
from edge.options import GenerateOptions, RuntimeOptions
from edge.quality import QualityReport, SchemeUse
from edge.runtime import automatic, support
from exporters.export import export
from tests.exporters.exported import contents
from tests.exporters.tiny import tiny_llama, write_gguf

ROOT = Path(edge.__file__).parents[1]


pytestmark = pytest.mark.usefixtures("cache")


# --- what a bundle holds ------------------------------------------------------------------------------------------


def test_every_file_is_there_and_vouched_for(llama_bundle: Bundle) -> None:
    files = contents(llama_bundle.path)
    assert set(files) == {
        "manifest.json", "weights.safetensors", "decoder.onnx", "decoder-exact.onnx", "tokenizer.json",
        "chat_template.jinja", "report/quality.json",
    }  # fmt: skip
    listed = llama_bundle.manifest.files
    assert {name: info.sha256 for name, info in listed.items()} == {
        name: digest for name, digest in files.items() if name != "manifest.json"
    }
    assert all((llama_bundle.path / name).stat().st_size == info.size for name, info in listed.items())
    assert (llama_bundle.manifest.name, llama_bundle.manifest.recipe["name"]) == ("tiny", "sub1b")
    assert llama_bundle.manifest.tokenizer.eos == (2,)
    assert llama_bundle.manifest.kv["bytes_per_token"] == 2 * 2 * 2 * 16 * 4
    assert set(llama_bundle.manifest.toolchain) == {"dsedge", "numpy", "onnx", "onnxruntime", "tokenizers"}
    assert llama_bundle.manifest.toolchain["dsedge"] == edge.__version__
    assert {name: (item.files, item.runtimes) for name, item in llama_bundle.manifest.artefacts.items()} == {
        "payload": (("weights.safetensors",), ("native",)),
        "onnx": (("decoder.onnx", "decoder-exact.onnx", "weights.safetensors"), ("onnx",)),
    }


def test_the_quality_report_adds_up(llama_bundle: Bundle, llama_folder: Path) -> None:
    quality = json.loads((llama_bundle.path / "report" / "quality.json").read_text())
    assert QualityReport.from_json(quality) == llama_bundle.manifest.quality
    numbers = load_file(llama_folder / "model.safetensors")
    assert sum(entry["parameters"] for entry in quality["schemes"].values()) == sum(x.size for x in numbers.values())
    assert {name: entry["tensors"] for name, entry in quality["schemes"].items()} == {
        "int8-g32-sym": 2, "int4-g32-sym": 2 * 7, "float32": 2 * 2 + 1,
    }  # fmt: skip
    for name, bits in (("int8-g32-sym", 8.5), ("int4-g32-sym", 4.5), ("float32", 32)):
        assert quality["schemes"][name]["bytes"] * 8 == quality["schemes"][name]["parameters"] * bits
        assert quality["schemes"][name]["carried"] == 0
    assert quality["bytes"] == sum(entry["bytes"] for entry in quality["schemes"].values())
    assert quality["bits_per_weight"] == 8 * quality["bytes"] / sum(x.size for x in numbers.values())
    # Heads of 16 are narrower than any group, which must be said of both layers.
    assert quality["notes"][0] == "layers.0.attn.o and 1 more: groups of 32 straddle heads of 16"
    parity = quality["parity"]
    assert (parity["tokens"], parity["auto"]) == (128, automatic())
    assert {*parity["runtimes"]} == {name for name in ("native", "onnx") if support(name).devices}
    for found in parity["runtimes"].values():
        assert found["exact"]["max_diff"] < 1e-3
        assert found["exact"]["deviation"] > 1  # the tiny model has something to say
    assert all(" costs a mean KL of " in note for note in quality["notes"][1:])


@pytest.mark.parametrize(("width", "group"), [(100, 32), (96, 64), (96, 128), (40, 128)])
def test_q1_widths_that_the_group_does_not_divide_are_padded_and_counted(
    width: int, group: int, tmp_path: Path
) -> None:
    """Every matrix is int4, none is left wide; the sizes in the manifest are those of whole groups."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8}
    folder = tiny_llama(tmp_path / "m", hidden_size=width, intermediate_size=width, num_hidden_layers=1, **heads)
    recipe = tmp_path / "r.toml"
    recipe.write_text(f'[[rule]]\nmatch = "*"\nscheme = "int4-g{group}-sym"\n')
    made = export(folder, tmp_path / "x.dsedge", recipe=recipe)
    counted = made.manifest.quality.schemes
    wide = -(-width // group)
    assert set(counted) == {f"int4-g{group}-sym", "float32"}
    straight = counted[f"int4-g{group}-sym"]
    matrices = [(300, width)] * 2 + [(32, width)] * 3 + [(width, width)] * 3 + ([(width, 32)] if group == 32 else [])
    inner = -(-32 // group)
    expected = sum(rows * (inner if columns == 32 else wide) * (group // 2 + 2) for rows, columns in matrices)
    if group != 32:  # o has 32 columns; groups within heads of 8 there are none, so it keeps the recipe's
        expected += width * inner * (group // 2 + 2)
    assert (straight.tensors, straight.bytes) == (9, expected)
    assert counted["float32"] == SchemeUse(tensors=3, carried=0, parameters=3 * width, bytes=12 * width)
    assert made.manifest.quality.parity is not None
    assert all(found.exact.max_diff < 1e-2 for found in made.manifest.quality.parity.runtimes.values())


def test_codes_of_a_gguf_are_carried_and_counted(llama_folder: Path, tmp_path: Path) -> None:
    gguf = write_gguf(llama_folder, tmp_path / "m.gguf", quantization=lambda name: "Q8_0" if "embd" in name else "Q4_1")
    made = export(gguf, tmp_path / "x.dsedge")
    counted, parity = made.manifest.quality.schemes, made.manifest.quality.parity
    assert (counted["int8-g32-sym"].carried, counted["int4-g32-affine"].carried) == (1, 15)
    assert parity is not None
    assert parity.source is not None
    assert parity.source.mean_kl < 1e-6  # nothing is lost


def test_progress_is_told_in_order(llama_folder: Path, tmp_path: Path) -> None:
    told: list[tuple[str, float]] = []
    export(llama_folder, tmp_path / "x.dsedge", progress=lambda stage, share: told.append((stage, share)))
    stages = list(dict.fromkeys(stage for stage, _ in told))
    assert stages == ["describe", "quantize", "reference", "emit", "compare", "publish"]
    for stage in stages:
        shares = [share for name, share in told if name == stage]
        assert shares == sorted(shares)
    assert told[-1] == ("publish", 1.0)


# --- the same again -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("effort", ["none", "medium"])
def test_two_processes_with_other_hash_seeds_and_threads_write_the_same_bytes(
    effort: str, llama_bundle: Bundle, llama_folder: Path, tmp_path: Path
) -> None:
    """The figures of the report are numbers of the reference: they must not depend on how its products are split."""
    code = "import sys, edge; edge.export(*sys.argv[1:3], effort=sys.argv[3])"
    made = []
    for seed, threads in (("1", "1"), ("2", "3")):
        out = tmp_path / seed / "tiny.dsedge"
        out.parent.mkdir()
        subprocess.run(
            [sys.executable, "-c", code, str(llama_folder), str(out), effort],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": threads},
            check=True,
        )
        made.append(contents(out))
    assert made[0] == made[1]
    if effort == "none":
        assert made[0] == contents(llama_bundle.path)


def test_o1_exporting_again_over_a_bundle_changes_nothing(
    llama_bundle: Bundle, llama_folder: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(llama_bundle.path, tmp_path / "tiny.dsedge"))
    for _ in range(2):
        assert contents(export(llama_folder, out).path) == contents(llama_bundle.path)
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix == ".dsedge") == ["tiny.dsedge"]
    assert list(tmp_path.glob(".*")) == []


# --- external data ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["decoder.onnx", "decoder-exact.onnx"])
def test_o1_external_data_is_relative_there_and_hashed(name: str, llama_bundle: Bundle) -> None:
    model = onnx.load(llama_bundle.path / name, load_external_data=False)
    external = [x for x in model.graph.initializer if x.data_location == onnx.TensorProto.EXTERNAL]
    size = (llama_bundle.path / "weights.safetensors").stat().st_size
    assert len(external) > 10
    for tensor in external:
        where = {entry.key: entry.value for entry in tensor.external_data}
        assert where["location"] == "weights.safetensors"
        assert where["location"] in llama_bundle.manifest.files
        assert int(where["offset"]) % 64 == 0
        assert int(where["offset"]) + int(where["length"]) <= size
    # Nothing large hides inside the file: neither initializers nor constants in attributes.
    inline = [x for x in model.graph.initializer if x.data_location != onnx.TensorProto.EXTERNAL]
    constants = [a.t for node in model.graph.node for a in node.attribute if a.type == onnx.AttributeProto.TENSOR]
    assert all(len(x.raw_data) < 4096 for x in [*inline, *constants])


def test_o1_a_moved_bundle_loads_and_answers(
    llama_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Path(shutil.copytree(llama_bundle.path, tmp_path / "there" / "other name.dsedge"))
    monkeypatch.chdir("/")
    for name in ("decoder.onnx", "decoder-exact.onnx"):
        onnxruntime.InferenceSession(copy / name, providers=["CPUExecutionProvider"])
    options = GenerateOptions(max_tokens=8, ignore_eos=True)
    answers = []
    for path in (llama_bundle.path, copy):
        with edge.load(path, RuntimeOptions(runtime="onnx", threads=1)) as pipeline:
            answers.append(pipeline.complete("hello", options, raw=True).tokens)
    assert answers[0] == answers[1]
    assert len(answers[0]) == 8
