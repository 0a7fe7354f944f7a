"""The verbs over a real, tiny bundle: export, inspect, verify, run and bench."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import edge
from edge import runtime
from edge.cli import main
from exporters import parity
from runtimes.scripted import write_bundle
from tests.edge.scripted import change_manifest
from tests.exporters.tiny import VOCAB, tiny_llama

ROOT = Path(edge.__file__).parents[1]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("source") / "tiny")


@pytest.fixture(scope="module")
def exported(source: Path) -> Path:
    out = source.parent / "tiny.dsedge"
    assert main(["export", str(source), "-o", str(out), "--recipe", "sub1b"]) == 0
    return out


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSEDGE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DSEDGE_CACHE", str(tmp_path / "cache"))


def test_export_says_what_it_wrote(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "again.dsedge"
    assert main(["export", str(source), "-o", str(out)]) == 0
    done = capsys.readouterr()
    assert done.out.startswith(f"{out}: ")
    assert "weights at " in done.out
    assert "weights against the source's" in done.out
    assert "quantize\n" in done.err


def test_a_model_too_large_for_a_parity_check_is_exported_and_inspected(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Above a billion parameters there are no comparisons to print, only a note that says so."""
    monkeypatch.setattr(parity, "KEEP_LIMIT", 0)
    out = tmp_path / "large.dsedge"
    assert main(["export", str(source), "-o", str(out)]) == 0
    assert "note: parity was not checked: above a billion parameters run `dsedge verify`" in capsys.readouterr().out
    assert main(["inspect", str(out)]) == 0
    done = capsys.readouterr()
    assert "quality:    not compared\n" in done.out
    assert main(["inspect", str(out), "--full"]) == 0
    done = capsys.readouterr()
    assert "parity was not checked" in done.out
    assert "weights against" not in done.out


@pytest.mark.parametrize(("change", "message"), [
    ({"kv": {"dtype": "int8"}}, "its KV is of the type 'int8'; known are float16, float32"),
    ({"kv": {"dtype": ["float32"]}}, "its KV is of the type"),
    ({"quality": {"parity": "x"}}, "ParityReport is str, no table"),
    ({"quality": {"parity": {"source": 1, "tokens": 3}}}, "Comparison is int, no table"),
    ({"quality": {"parity": {"source": {"mean_kl": "x"}}}}, "mean_kl is 'x', no number"),
    ({"quality": {"parity": {"source": {"mean_kl": 1}}}}, "missing 3 required positional arguments"),
    ({"quality": {"notes": 3}}, "notes is int, no list"),
    ({"artefacts": {"x": {"files": ["y"], "runtimes": []}}}, "'y' of artefact x is not among the files"),
    ({"artefacts": {"x": {"files": "y", "runtimes": []}}}, "files are no list of texts"),
    ({"origin": {"name": 3}}, "the origin's name, revision, license and files must be texts"),
])  # fmt: skip
def test_a_manifest_with_a_report_that_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], message: str
) -> None:
    bundle = write_bundle(tmp_path / "odd.dsedge", ["x"]).path
    change_manifest(bundle, lambda manifest: manifest.update(change))
    assert main(["inspect", str(bundle)]) == 2
    assert message in capsys.readouterr().err


def test_export_by_name_goes_to_the_store(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(source), "--name", "mine", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["name"], found["path"]) == ("mine", str(tmp_path / "home" / "models" / "mine.dsedge"))
    assert main(["run", "mine", "Paris", "--raw", "--max-tokens", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["completion_tokens"] == 3


def test_inspect_adds_up(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(exported), "--json", "--full", "--runtime", "onnx"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = {row["kind"]: row for row in found["tensors"]}
    # The fp16 scale of a group of 32 costs half a bit a weight.
    assert (rows["attn.q"]["bits_per_weight"], rows["attn.q"]["parameters"]) == (4.5, 2 * 64 * 64)
    assert (rows["embed"]["bits_per_weight"], rows["embed"]["parameters"]) == (8.5, VOCAB * 64)
    assert found["kv"]["bytes_per_token"] == 2 * 2 * 2 * 16 * 4  # layers, keys and values, kv heads, head_dim, float32
    assert found["bytes"] == sum(found["files"].values())
    assert main(["inspect", str(exported), "--full"]) == 0
    assert "decoder.onnx" in capsys.readouterr().out


@pytest.mark.parametrize("name", [name for name in ("native", "onnx") if runtime.support(name).devices])
def test_inspect_reports_keys_and_values_as_the_runtime_keeps_them(
    name: str, exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(exported), "--json", "--runtime", name]) == 0
    kv = json.loads(capsys.readouterr().out)["kv"]
    assert (kv["runtime"], sum(kv["dtypes"].values())) == (name, 2)
    bundle = edge.open_bundle(exported)
    chunk = 256
    with edge.Pipeline(bundle, edge.RuntimeOptions(runtime=name, context=4096, chunk=chunk, sequences=1)) as pipeline:
        reserved = pipeline.runtime.kv_bytes
    # A backend may add scratch rows for a chunk, and whole lines; another dtype would be half or twice as much.
    assert kv["bytes"] <= reserved <= 1.2 * kv["bytes"]


def test_verify_recomputes_the_sums_that_opening_trusts(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "damaged.dsedge"
    assert main(["export", str(source), "-o", str(out)]) == 0
    assert main(["verify", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["parity"]["runtimes"]
    assert set(found) == {name for name in ("native", "onnx") if runtime.support(name).devices}
    assert all(item["exact"]["max_diff"] < 1e-3 and item["total"] is None for item in found.values())
    template = out / "chat_template.jinja"
    before = template.stat()
    template.write_bytes(template.read_bytes().replace(b"assistant", b"assistent"))
    os.utime(template, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert main(["inspect", str(out), "--json"]) == 0
    capsys.readouterr()
    assert main(["verify", str(out)]) == 2
    done = capsys.readouterr()
    assert done.out == ""
    assert "chat_template.jinja: its SHA-256 is not the manifest's" in done.err


def test_u7_a_full_disk_is_one_line_and_leaves_the_old_bundle(source: Path, exported: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.dsedge"
    shutil.copytree(exported, out)
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    done = subprocess.run(
        [sys.executable, "-m", "edge.cli", "export", str(source), "-o", str(out), "--force"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)),
    )
    assert (done.returncode, done.stdout) == (2, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("dsedge: ")
    assert "weights.safetensors" in last
    assert f"{(exported / 'weights.safetensors').stat().st_size} bytes" in last
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["model.dsedge"]


def test_bench_measures_the_real_runtime(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--prompt", "16", "--new", "4", "--runs", "2", "--threads", "1", "--json"]
    assert main(["bench", str(exported), *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["runtime"], found["threads"], len(found["runs"])) == (runtime.automatic(), 1, 2)
    assert found["decode_tok_s"] > 0
