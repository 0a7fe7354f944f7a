"""`dsedge pull`, `import`, `export --variants` and `completion`: what lands in the store, and what is said."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import edge
from edge import received, store
from edge.bundle import MANIFEST, open_bundle, verify_bundle
from edge.cli import main
from edge.commands.release import parse_variants
from edge.download import Fetched
from edge.errors import CheckpointError
from edge.sums import sha256
from runtimes.scripted import write_bundle

ANSWER = "Paris."
ROOT = Path(edge.__file__).parents[1]


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSEDGE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DSEDGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DSEDGE_CATALOG", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))  # `run` reads what is there, and pytest's refuses


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "demo.dsedge", [ANSWER]).path


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- import -------------------------------------------------------------------------------------------------------


def test_a_bundle_is_imported_whole_and_nothing_else_of_its_folder(bundle: Path) -> None:
    before = contents(bundle)
    (bundle / "notes.txt").write_text("not of the bundle")
    assert main(["import", str(bundle)]) == 0
    assert store.names() == ["demo"]
    assert contents(store.bundle_path("demo")) == before
    assert verify_bundle(store.bundle_path("demo")).manifest == open_bundle(bundle).manifest
    assert [path.name for path in store.folder().iterdir()] == ["demo.dsedge"]


def test_an_import_does_not_replace_a_model(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", str(bundle), "--name", "mine"]) == 0
    assert main(["import", str(bundle), "--name", "mine"]) == 2
    assert "the store has a model 'mine'; choose another --name, or `dsedge rm mine` first" in capsys.readouterr().err


def test_u7_a_damaged_bundle_is_not_imported(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    open_bundle(bundle)  # whose sums are remembered by size and time of change from here on
    weights = bundle / "weights.safetensors"
    found = weights.stat()
    damaged = bytearray(weights.read_bytes())
    damaged[-1] ^= 1
    weights.write_bytes(damaged)
    os.utime(weights, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert main(["import", str(bundle)]) == 2
    assert "weights.safetensors: its SHA-256 is not the manifest's" in capsys.readouterr().err
    assert list(store.folder().iterdir()) == []


def test_a_checkpoint_is_exported_into_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "tiny-model.gguf"
    source.write_bytes(b"GGUF")

    def export(found: Path, out: Path, *, name: str, **_: Any) -> None:
        assert (found, name) == (source, "tiny-model")
        write_bundle(out, [ANSWER])

    monkeypatch.setattr(edge, "export", export, raising=False)
    assert main(["import", str(source)]) == 0
    assert store.names() == ["tiny-model"]


# --- pull ---------------------------------------------------------------------------------------------------------


def catalogue(folder: Path, bundle: Path, *, pin: str | None) -> Path:
    path = folder / "catalog.toml"
    lines = ["[models.demo]", 'title="Demo"', 'family="llama"', 'variant="7b"', 'license="MIT"', 'form="bundle"']
    lines += ["size = 1", *([f'sha256 = "{pin}"'] if pin else []), "[[models.demo.sources]]", 'kind = "path"']
    path.write_text("\n".join([*lines, f"path = {json.dumps(str(bundle))}"]))
    return path


def test_an_exported_bundle_is_pulled_without_an_export(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = catalogue(tmp_path, bundle, pin=sha256(bundle / MANIFEST))
    assert main(["pull", "demo", "--catalog", str(path)]) == 0
    assert "not pinned" not in capsys.readouterr().err
    assert contents(store.bundle_path("demo")) == contents(bundle)
    assert main(["rm", "demo"]) == 0
    monkeypatch.setenv("DSEDGE_CATALOG", str(path))
    assert main(["run", "demo", "hi", "--runtime", "scripted"]) == 0
    assert capsys.readouterr().out == ANSWER + "\n"


def test_what_is_not_pinned_is_said_aloud(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = catalogue(tmp_path, bundle, pin=None)
    assert main(["pull", "demo", "--catalog", str(path)]) == 0
    said = capsys.readouterr().err
    assert "demo: not pinned in the catalogue, so this pull is taken on trust" in said
    assert str(received.path()) in said


def test_a_pull_exports_with_the_entrys_variant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def export(source: Path, out: Path, *, recipe: str, **_: Any) -> None:
        asked.append(recipe)
        write_bundle(out, [ANSWER])

    monkeypatch.setattr("edge.pulling.fetch", lambda model, progress: Fetched(tmp_path))
    monkeypatch.setattr(edge, "export", export, raising=False)
    assert main(["pull", "qwen3-0.6b"]) == 0
    assert main(["pull", "qwen3-8b"]) == 0
    assert asked == ["sub1b", "7b"]


# --- export --variants --------------------------------------------------------------------------------------------


def test_variants_are_told_apart_where_paths_have_commas() -> None:
    assert parse_variants(["sub1b=a,7b=b"]) == {"sub1b": "a", "7b": "b"}
    assert parse_variants(["sub1b=/x,y/a", "7b=C:\\models,old\\b=c"]) == {
        "sub1b": "/x,y/a",
        "7b": "C:\\models,old\\b=c",
    }


def test_a_release_set_can_be_pulled_by_its_catalogue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def export(source: str, out: Path, *, recipe: str, name: str, progress: Any, **_: Any) -> edge.Bundle:
        progress("quantize", 0.5)
        return write_bundle(out, [f"{name} from {source} by {recipe}"])

    monkeypatch.setattr(edge, "export", export, raising=False)
    for name in ("small.gguf", "large"):
        (tmp_path / name).write_text("")
    words = ["export", "--variants", "sub1b=small.gguf,7b=large", "-o", "out/tale", "--license", 'the "best"']
    assert main([*words, "--json"]) == 0
    out, err = capsys.readouterr()
    summary = json.loads(out)
    assert [item["path"] for item in summary["bundles"]] == [
        str(tmp_path / "out/tale" / f"tale-{variant}.dsedge") for variant in ("sub1b", "7b")
    ]
    assert "sub1b: quantize" in err
    path = tmp_path / "out" / "tale" / "catalog.toml"
    entry = tomllib.loads(path.read_text())["models"]["tale-sub1b"]
    assert (entry["license"], entry["variant"], entry["family"]) == ('the "best"', "sub1b", "scripted")
    assert entry["sha256"] == sha256(tmp_path / "out/tale/tale-sub1b.dsedge/manifest.json")
    moved = (tmp_path / "out").rename(tmp_path / "elsewhere") / "tale" / "catalog.toml"
    assert main(["pull", "tale-7b", "--catalog", str(moved)]) == 0
    assert main(["run", "tale-7b", "hi", "--runtime", "scripted"]) == 0
    assert capsys.readouterr().out == "tale-7b from large by 7b\n"


@pytest.mark.parametrize(("license_", "code"), [(b"\xc3\x9cn\xc3\xaf", 0), (b"\xff", 2)])
def test_a_license_is_utf8_whatever_the_locale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], license_: bytes, code: int
) -> None:
    """Under LC_ALL=C a word comes as ASCII with its other bytes escaped."""
    monkeypatch.setattr(edge, "export", lambda source, out, **_: write_bundle(out, [ANSWER]), raising=False)
    (tmp_path / "a").write_text("")
    word = license_.decode("ascii", "surrogateescape")
    assert main(["export", "--variants", "sub1b=a", "-o", "out", "--license", word]) == code
    path = tmp_path / "out" / "catalog.toml"
    if code:
        assert "--license is not valid Unicode" in capsys.readouterr().err
        assert not path.exists()
    else:
        assert 'license = "Ünï"' in path.read_text(encoding="utf-8")


def test_u7_a_catalogue_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(edge, "export", lambda source, out, **_: write_bundle(out, [ANSWER]), raising=False)
    monkeypatch.setattr("edge.files.os.fsync", full)
    (tmp_path / "a").write_text("")
    assert main(["export", "--variants", "sub1b=a", "-o", "out"]) == 2
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["out-sub1b.dsedge"]


def test_a_release_that_fails_leaves_an_earlier_catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def export(source: str, out: Path, *, recipe: str, **_: Any) -> edge.Bundle:
        if recipe == "7b":
            raise CheckpointError("damaged")
        return write_bundle(out, [ANSWER])

    monkeypatch.setattr(edge, "export", export, raising=False)
    for name in "ab":
        (tmp_path / name).write_text("")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "catalog.toml").write_text("earlier")
    assert main(["export", "--variants", "sub1b=a,7b=b", "-o", "out"]) == 2
    assert (tmp_path / "out" / "catalog.toml").read_text() == "earlier"


@pytest.mark.parametrize(("variants", "reason"), [
    ("sub1b=a,7b=absent", "absent: no such file or folder for the variant 7b"),
    ("sub1b=a,9b=a", "no recipe '9b'"),
])  # fmt: skip
def test_a_release_looks_at_everything_before_it_exports_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variants: str, reason: str
) -> None:
    monkeypatch.setattr(edge, "export", lambda *_, **__: pytest.fail("exported"), raising=False)
    (tmp_path / "a").write_text("")
    assert main(["export", "--variants", variants, "-o", "out"]) == 2
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_u7_an_import_without_room_says_how_much_is_needed(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("exporters.bundle_copy.shutil.copyfile", full)
    assert main(["import", str(bundle)]) == 2
    needed = sum(file.stat().st_size for file in bundle.iterdir() if file.name not in ("manifest.json", "notes.txt"))
    assert f"at least {needed} bytes are needed there" in capsys.readouterr().err


def test_a_file_that_the_system_refuses_is_no_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", refuse)
    assert main(["import", "locked"]) == 2
    assert capsys.readouterr().err == "dsedge: locked: Permission denied\n"


# --- completion ---------------------------------------------------------------------------------------------------


def dsedge(*words: str, **environment: str) -> str:
    found = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(
        [sys.executable, "-m", "edge.cli", *words],
        env=found,
        capture_output=True,
        text=True,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_a_shells_script_asks_dsedge_again(shell: str) -> None:
    script = dsedge("completion", shell)
    assert "_DSEDGE_COMPLETE" in script
    assert f"complete_{shell}" in script


def test_the_bash_script_is_valid_and_completes(tmp_path: Path) -> None:
    script = tmp_path / "completion.sh"
    script.write_text(dsedge("completion", "bash"))
    subprocess.run(["bash", "-n", str(script)], check=True)

    def complete(line: str) -> list[str]:
        count = str(len(line.split(" ")) - 1)
        return dsedge(_DSEDGE_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=count).split()

    assert complete("dsedge ver") == ["verify"]
    assert complete("dsedge run --tempe") == ["--temperature"]
    assert complete("dsedge pull qwen3-8") == ["qwen3-8b"]
    write_bundle(store.place("mine"), [ANSWER])
    assert complete("dsedge rm mi") == ["mine"]


def test_without_a_shell_asking_the_help_shows_no_option_of_completion() -> None:
    assert "--show-completion" not in dsedge("--help")
