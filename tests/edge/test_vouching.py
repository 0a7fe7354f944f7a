"""What a manifest vouches for: every byte that is read, and its own values."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from edge.bundle import open_bundle, read_manifest, unknown_keys, verify_bundle
from edge.bundle_files import unlisted
from edge.cli import main
from edge.errors import BundleError, FormatError
from edge.onnx_files import external_locations
from edge.quality import ParityReport
from edge.safetensors import read_header
from edge.seal import seal
from edge.sums import sha256
from runtimes.scripted import write_bundle
from tests.edge.scripted import change_manifest


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSEDGE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DSEDGE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "x.dsedge", ["hello"]).path


def external(location: str, name: str = "w") -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[2])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("offset", "0"), ("location", location), ("length", "8")):
        tensor.external_data.add(key=key, value=value)
    return tensor


def add_graph(bundle: Path, location: str, place: str = "decoder.onnx") -> None:
    """Give the bundle a listed graph that adds an external tensor to its input."""
    add = helper.make_node("Add", ["x", "w"], ["y"])
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph([add], "g", ports[:1], ports[1:], [external(location)])
    path = bundle / place
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(helper.make_model(graph).SerializeToString())
    info = {"file": place, "kind": "onnx", "precision": {}, "inputs": ["x"], "outputs": ["y"]}
    entry = {"size": path.stat().st_size, "sha256": sha256(path)}

    def change(manifest: dict[str, Any]) -> None:
        manifest["graphs"]["decoder"] = info
        manifest["files"][place] = entry

    change_manifest(bundle, change)


def refused(bundle: Path, words: str) -> None:
    for opening in (open_bundle, verify_bundle):
        with pytest.raises(BundleError, match=words) as caught:
            opening(bundle)
        assert "\n" not in str(caught.value)


# --- N21: every byte that is read is listed -----------------------------------------------------------------------


@pytest.mark.parametrize("linked", [False, True])
def test_n21_a_graph_whose_weights_are_in_a_file_that_is_not_listed(
    linked: bool, bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "outside").write_bytes(bytes(8))
    if linked:
        os.link(tmp_path / "outside", bundle / "more.bin")
    else:
        (bundle / "more.bin").write_bytes(bytes(8))
    add_graph(bundle, "more.bin")
    refused(bundle, r"decoder\.onnx: its weights are in 'more\.bin', which the manifest does not list")
    assert main(["import", str(bundle)]) == 2
    assert "more.bin" in capsys.readouterr().err
    assert not (tmp_path / "home" / "models" / "x.dsedge").exists()


def test_n21_a_graph_below_a_folder_reads_beside_itself(bundle: Path) -> None:
    add_graph(bundle, "weights.safetensors", "graphs/decoder.onnx")
    refused(bundle, r"'weights\.safetensors', which the manifest does not list")
    add_graph(bundle, "weights.safetensors")
    assert open_bundle(bundle).manifest.graphs["decoder"].file == "decoder.onnx"


def test_n21_a_listed_file_with_a_second_name_outside(bundle: Path, tmp_path: Path) -> None:
    os.link(bundle / "weights.safetensors", tmp_path / "outside")
    refused(bundle, r"weights\.safetensors: has a second name outside of the bundle \(a hard link\)")
    shutil.copytree(bundle, tmp_path / "copy.dsedge")
    open_bundle(tmp_path / "copy.dsedge")


def test_n21_two_names_of_one_file_inside_are_no_way_out(bundle: Path) -> None:
    os.link(bundle / "script.json", bundle / "again.json")
    refused(bundle, "script.json: has a second name")
    change_manifest(bundle, lambda data: data["files"].update({"again.json": data["files"]["script.json"]}))
    assert open_bundle(bundle).read_text("again.json") == (bundle / "script.json").read_text()
    change_manifest(bundle, lambda data: data["files"].update({"./again.json": data["files"]["script.json"]}))
    refused(bundle, r"the manifest lists again\.json twice")


def test_n21_verify_names_what_the_manifest_does_not_list(
    bundle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (bundle / "report" / "old").mkdir(parents=True)
    (bundle / "report" / "old" / "notes.txt").write_text("mine")
    (bundle / "empty").mkdir()
    (bundle / "link").symlink_to("report")
    (bundle / ".DS_Store").write_bytes(b"")
    found = [".DS_Store", "empty", "link", "report", "report/old", "report/old/notes.txt"]
    assert unlisted(bundle, read_manifest(bundle / "manifest.json").files, "manifest.json") == found
    monkeypatch.setattr("exporters.parity.check", lambda bundle, target: ParityReport(0, {}))
    monkeypatch.setattr("edge.commands.verify.print_comparisons", lambda report: None)
    assert main(["verify", str(bundle)]) == 0
    assert "not listed, so never read: .DS_Store, empty, link, report, report/old and 1 more" in capsys.readouterr().err
    assert main(["verify", str(bundle), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unlisted"] == found


def test_n21_a_tensor_that_is_described_twice(tmp_path: Path) -> None:
    entry = '{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
    twice = '{"dtype":"U8","dtype":"I8",' + entry.removeprefix('{"dtype":"U8",')
    path = tmp_path / "x.safetensors"
    for header in (f'{{"a":{entry},"a":{entry}}}', f'{{"a":{twice}}}'):
        path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + b"\0")
        with pytest.raises(FormatError, match=r"its header is no JSON \(the key '(a|dtype)' stands there twice"):
            read_header(path)


def test_n21_a_manifest_that_says_a_thing_twice(bundle: Path) -> None:
    text = (bundle / "manifest.json").read_text()
    (bundle / "manifest.json").write_text(text.replace('"context"', '"context": 1, "context"', 1))
    refused(bundle, r"manifest\.json: is no JSON \(the key 'context' stands there twice\)")


# --- which files a graph reads, against the onnx package ------------------------------------------------------------


def test_n36_locations_are_found_wherever_a_tensor_can_stand(tmp_path: Path) -> None:
    inner = helper.make_graph([], "inner", [], [], [external("subgraph", "a")])
    sparse = helper.make_sparse_tensor(external("values", "b"), external("indices", "c"), [4])
    nodes = [
        helper.make_node("Constant", [], ["k"], value=external("attribute", "d")),
        helper.make_node("If", ["x"], ["y"], then_branch=inner, else_branch=inner),
        helper.make_node("Constant", [], ["s"], sparse_value=sparse),
        helper.make_node("Custom", [], ["t"], many=[external("list", "e")], number=3, ratio=0.5, text="location"),
    ]
    graph = helper.make_graph(nodes, "g", [], [], [external("initializer")], sparse_initializer=[sparse])
    function = helper.make_function(
        "d", "f", [], ["k"], [helper.make_node("Constant", [], ["k"], value=external("function"))], []
    )
    path = tmp_path / "x.onnx"
    path.write_bytes(helper.make_model(graph, functions=[function]).SerializeToString())
    assert external_locations(path) == {
        "initializer", "values", "indices", "attribute", "subgraph", "list", "function",
    }  # fmt: skip


@given(st.binary(min_size=1, max_size=60), st.integers(0, 400))
@settings(max_examples=200, deadline=None)
def test_n36_damaged_graphs_are_refused_or_read(
    tmp_path_factory: pytest.TempPathFactory, garbage: bytes, place: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.onnx"
    add = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [], [], [external("weights")])
    content = helper.make_model(add).SerializeToString()
    path.write_bytes(content[:place] + garbage + content[place:])
    try:
        expected = {
            entry.value
            for tensor in onnx.load_from_string(path.read_bytes()).graph.initializer
            for entry in tensor.external_data
            if entry.key == "location"
        }
    except Exception:
        expected = None  # type: ignore[assignment]
    try:
        found = external_locations(path)
    except BundleError:
        return
    assert expected is None or expected <= found


def test_n36_no_graph_at_all(tmp_path: Path) -> None:
    for content in (b"", b"\x0f", b"\x3a\x05ab", b"\xff" * 20, b"\x0d\x01"):
        (tmp_path / "x.onnx").write_bytes(content)
        with pytest.raises(BundleError, match=r"x\.onnx: is no ONNX graph"):
            external_locations(tmp_path / "x.onnx")


@pytest.mark.parametrize("location", ["../outside", "/etc/hostname", "a/../../outside", "..\\outside", "C:outside", ""])
def test_n36_weights_outside_of_the_bundle_are_refused_at_import_and_opening(
    location: str, bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "outside").write_bytes(bytes(8))
    add_graph(bundle, location)
    refused(bundle, r"decoder\.onnx: its weights are in '.*', which leaves the bundle")
    assert main(["import", str(bundle)]) == 2
    assert "which leaves the bundle" in capsys.readouterr().err


# --- N36: the manifest's own values ---------------------------------------------------------------------------------


CHANGES: list[Callable[[dict[str, Any]], object]] = [
    lambda data: data["tokenizer"].update(eos=[255]),
    lambda data: data["tokenizer"].update(add_bos=True),
    lambda data: data["spec"]["ropes"][0].update(theta=10001.0),
    lambda data: data["spec"].update(context=4095),
    lambda data: data.update(name="other"),
    lambda data: data["quality"].update(notes=["none"]),
    lambda data: data.pop("manifest_sha256"),
    lambda data: data.update(manifest_sha256="0" * 64),
    lambda data: data["quality"].update(manifest_sha256="0" * 64),
]


@pytest.mark.parametrize("change", CHANGES)
def test_n36_a_changed_value_of_the_manifest_is_found(change: Callable[[dict[str, Any]], object], bundle: Path) -> None:
    data = json.loads((bundle / "manifest.json").read_text())
    change(data)
    (bundle / "manifest.json").write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")
    refused(bundle, r"manifest\.json: its own SHA-256 \(manifest_sha256\) is not its text's")


def test_n36_swapped_graphs_are_found(bundle: Path) -> None:
    add_graph(bundle, "weights.safetensors", "exact.onnx")
    add_graph(bundle, "weights.safetensors")
    path = bundle / "manifest.json"
    text = path.read_text()
    path.write_text(text.replace("decoder.onnx", "?").replace("exact.onnx", "decoder.onnx").replace("?", "exact.onnx"))
    refused(bundle, "its own SHA-256")
    path.write_text(text)
    open_bundle(bundle)


def test_n36_the_sum_is_that_of_the_text_with_zeros_in_its_place(bundle: Path) -> None:
    """Computed with nothing but a search and hashlib."""
    text = (bundle / "manifest.json").read_bytes()
    mark = b'"manifest_sha256": "'
    start = text.index(mark) + len(mark)
    blank = text[:start] + b"0" * 64 + text[start + 64 :]
    assert text[start : start + 64].decode() == hashlib.sha256(blank).hexdigest()
    assert seal(json.loads(text)).encode() == text


@pytest.mark.parametrize(
    "content", [b"{}", b'{"format": "2.0"}', b'{"format": "2.0", "spec": []}', b"[1]", b"{", b"\xff"]
)
def test_n36_an_ill_formed_manifest_names_the_file(content: bytes, bundle: Path) -> None:
    (bundle / "manifest.json").write_bytes(content)
    refused(bundle, rf"^{bundle}/manifest\.json: ")


# --- versions of the format -----------------------------------------------------------------------------------------


def test_a_newer_minor_version_opens_and_its_keys_are_named(
    bundle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def newer(data: dict[str, Any]) -> None:
        major, minor = data["format"].split(".")
        data.update(format=f"{major}.{int(minor) + 1}", colour="blue")
        data["tokenizer"]["casing"] = "lower"
        data["files"]["script.json"]["mode"] = 420

    change_manifest(bundle, newer)
    assert open_bundle(bundle).manifest.tokenizer.eos == (256,)
    assert unknown_keys(json.loads((bundle / "manifest.json").read_text())) == ["colour"]
    monkeypatch.setattr("exporters.parity.check", lambda bundle, target: ParityReport(0, {}))
    monkeypatch.setattr("edge.commands.verify.print_comparisons", lambda report: None)
    assert main(["verify", str(bundle)]) == 0
    assert "its manifest has keys that this version does not read: colour" in capsys.readouterr().err


@pytest.mark.parametrize(("version", "advice"), [("9.0", "update dsedge"), ("1.1", "export or pull the model again")])
def test_another_major_version_is_refused_in_one_line(version: str, advice: str, bundle: Path) -> None:
    change_manifest(bundle, lambda data: data.update(format=version, spec={"new": 1}))
    refused(bundle, rf"manifest\.json: manifest format {version}; this version reads 2\.x: {advice}")


def test_a_bundle_of_version_0_1_says_to_export_again(bundle: Path) -> None:
    """Its format was the number 1, its spec had heads and kv_heads at the top, and it had no sum."""
    data = json.loads((bundle / "manifest.json").read_text())
    flat = {"family": "llama", "vocab_size": 260, "heads": 9, "kv_heads": 3, "layers": [{"window": None, "rope": 0}]}
    data.pop("manifest_sha256")
    (bundle / "manifest.json").write_text(json.dumps({**data, "format": 1, "spec": flat}))
    refused(bundle, r"manifest\.json: manifest format 1\.0; this version reads 2\.x: export or pull the model again")
