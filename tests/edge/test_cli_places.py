"""N39: odd places and odd consoles: paths under other locales, folders that are gone, libraries that use stderr."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import onnx
import pytest

import edge
from edge.cli import main
from edge.errors import StorageError
from edge.pipeline import Pipeline
from edge.sums import sha256
from exporters.bundle_folder import BundleFolder
from runtimes.scripted import write_bundle
from tests.edge.scripted import change_manifest
from tests.exporters.tiny import tiny_llama

ROOT = Path(edge.__file__).parents[1]
C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
NAME = "日本.dsedge"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    folders = {"DSEDGE_HOME": str(tmp_path / "home"), "DSEDGE_CACHE": str(tmp_path / "cache")}
    return {**os.environ, **folders, "PYTHONPATH": str(ROOT)}


def dsedge(
    *words: str | bytes, environment: dict[str, str], folder: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "edge", *words]
    return subprocess.run(
        command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )


@pytest.mark.skipif(sys.platform != "linux", reason="paths of bytes")
def test_n39_a_path_that_the_locale_cannot_spell(environment: dict[str, str], tmp_path: Path) -> None:
    """Exported, checked through ONNX Runtime and run under LC_ALL=C; a path that is no UTF-8 at all is named."""
    tiny_llama(tmp_path / "tiny")
    done = dsedge("export", "tiny", "-o", NAME, environment={**environment, **C_LOCALE}, folder=tmp_path)
    assert (done.returncode, b"incompatible" in done.stderr) == (0, False)
    words = ["hi", "--max-tokens", "2", "--runtime", "onnx"]
    done = dsedge("run", f"./{NAME}", *words, environment={**environment, **C_LOCALE}, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    os.rename(tmp_path / NAME, os.fsencode(tmp_path) + b"/bad\xff.dsedge")
    done = dsedge("run", b"./bad\xff.dsedge", *words, environment=environment, folder=tmp_path)
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert done.stderr.endswith(b"the path is no UTF-8, which ONNX Runtime needs; rename or move it\n")


def test_n39_what_onnx_runtime_logs_does_not_reach_stderr(environment: dict[str, str], tmp_path: Path) -> None:
    """A tensor that no node uses: its log would say so, in colours."""
    tiny_llama(tmp_path / "tiny")
    assert dsedge("export", "tiny", "-o", "x.dsedge", environment=environment, folder=tmp_path).returncode == 0
    path = tmp_path / "x.dsedge" / "decoder.onnx"
    graph = onnx.load(path, load_external_data=False)
    graph.graph.initializer.append(onnx.helper.make_tensor("unused", onnx.TensorProto.FLOAT, [1], [1.0]))
    path.write_bytes(graph.SerializeToString())
    entry = {"size": path.stat().st_size, "sha256": sha256(path)}
    change_manifest(tmp_path / "x.dsedge", lambda data: data["files"].update({"decoder.onnx": entry}))
    words = ["run", "./x.dsedge", "hi", "--max-tokens", "2", "--runtime", "onnx"]
    done = dsedge(*words, environment=environment, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")


def test_n39_a_warning_of_a_library_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def warn(*_: Any, **__: Any) -> list[int]:
        warnings.warn("overflow\nencountered", RuntimeWarning, stacklevel=1)
        return [1]

    monkeypatch.setattr(Pipeline, "_encode", warn)
    bundle = write_bundle(tmp_path / "demo.dsedge", ["yes"]).path
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["run", str(bundle), "hi", "--runtime", "scripted"]) == 0
    expected = "dsedge: warning: overflow encountered (RuntimeWarning; --debug shows where)\n"
    assert capsys.readouterr() == ("yes\n", expected)


@pytest.mark.skipif(sys.platform == "win32", reason="a folder in use cannot be removed there")
@pytest.mark.parametrize("words", [
    ["export", "TINY", "-o", "y.dsedge"],
    ["run", "./x.dsedge", "hi"],
    ["run", "x", "hi"],
    ["inspect", "x.dsedge"],
    ["import", "x.dsedge"],
    ["pull", "x", "--catalog", "c.toml"],
    ["export", "--variants", "sub1b=TINY", "-o", "out"],
], ids=" ".join)  # fmt: skip
def test_n39_a_current_folder_that_is_gone_is_no_bug(
    words: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    tiny = tiny_llama(tmp_path / "tiny")
    gone = tmp_path / "gone"
    gone.mkdir()
    line = ["/bin/sh", "-c", 'rmdir ../gone; exec "$@"', "sh", sys.executable, "-m", "edge"]
    line += [word.replace("TINY", str(tiny)) for word in words]
    done = subprocess.run(
        line, env=environment, cwd=gone, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "this is a bug" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("dsedge: ")


@pytest.mark.parametrize("words", [
    ["export", "", "-o", "z.dsedge"],
    ["export", "tiny", "-o", ""],
    ["export", "tiny", "-o", "z.dsedge", "--recipe", ""],
    ["import", ""],
    ["pull", "x", "--catalog", ""],
    ["list", "--catalog", ""],
    ["run", "DEMO", "hi", "--runtime", "scripted", "--tools", ""],
], ids=" ".join)  # fmt: skip
def test_n39_an_empty_path_is_not_the_current_folder(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DSEDGE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DSEDGE_CACHE", str(tmp_path / "cache"))
    shutil.copytree(tiny_llama(tmp_path / "tiny"), tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")  # a checkpoint itself, so that taking it would succeed
    shutil.copytree(tmp_path / "tiny", "tiny")
    demo = str(write_bundle(tmp_path / "demo.dsedge", ["yes"]).path)
    assert main([demo if word == "DEMO" else word for word in words]) == 2
    assert "an empty path names no file or folder" in capsys.readouterr().err


def test_n39_the_first_ctrl_c_stops_a_template(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ended = []

    def render(*_: Any, **__: Any) -> list[int]:
        os.kill(os.getpid(), signal.SIGINT)
        ended.append("not interrupted")
        return [1]

    monkeypatch.setattr(Pipeline, "_encode", render)
    bundle = write_bundle(tmp_path / "demo.dsedge", ["yes"]).path
    assert main(["run", str(bundle), "hi", "--runtime", "scripted"]) == 130
    assert ended == []


def test_n39_a_message_about_a_hidden_folder_names_the_bundle(tmp_path: Path) -> None:
    target = tmp_path / "model.dsedge"
    with pytest.raises(StorageError) as caught, BundleFolder(target) as folder:
        raise StorageError(f"{folder.path / 'decoder.onnx'}: cannot be written: no space left")
    assert str(caught.value) == f"{target / 'decoder.onnx'}: cannot be written: no space left"
