"""N35 and N36: what publishing a bundle may replace, and what it leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edge import store
from edge.bundle import open_bundle
from edge.cli import main
from edge.errors import OptionError
from edge.files import remove_tree, write_whole
from edge.sums import sha256
from exporters.bundle_folder import BundleFolder
from runtimes.scripted import write_bundle
from tests.edge.scripted import change_manifest
from tests.exporters.tiny import tiny_llama

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSEDGE_HOME", str(tmp_path_factory.mktemp("home")))
    monkeypatch.setenv("DSEDGE_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.chdir(tmp_path)


def replace(target: Path) -> None:
    """Publish one file in the target's place."""
    with BundleFolder(target) as folder:
        (folder.path / "new").write_text("new")
        folder.commit()


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


# --- only a whole bundle of ours, holding nothing else ---------------------------------------------------------------

FOREIGN: dict[str, Any] = {
    "a web app's": {"name": "app", "start_url": "/", "icons": []},
    "another program's": {"format": 1, "files": {"data.db": {"size": 4, "sha256": ""}}},
    "a list": [],
    "odd files": {"format": "1.1", "spec": {}, "tokenizer": {}, "files": ["data.db"]},
    "files outside": {"format": "1.1", "spec": {}, "tokenizer": {}, "files": {"../x": {"size": 1, "sha256": ""}}},
}


@pytest.mark.parametrize("manifest", FOREIGN.values(), ids=FOREIGN.keys())
def test_n35_a_folder_with_a_foreign_manifest_stays(manifest: Any, tmp_path: Path) -> None:
    target = tmp_path / "app.dsedge"
    target.mkdir()
    (target / "manifest.json").write_text(json.dumps(manifest))
    (target / "data.db").write_bytes(b"mine")
    with pytest.raises(OptionError, match=r"app\.dsedge: exists and is no bundle; it stays"):
        replace(target)
    assert (target / "data.db").read_bytes() == b"mine"
    assert files(tmp_path) == ["app.dsedge", "app.dsedge/data.db", "app.dsedge/manifest.json"]


def test_n35_a_bundle_with_something_else_in_it_stays(tmp_path: Path) -> None:
    target = write_bundle(tmp_path / "x.dsedge", ["a"]).path
    (target / "notes").mkdir()
    with pytest.raises(OptionError, match=r"x\.dsedge: holds notes, which is no part of the bundle there; it stays"):
        replace(target)
    (target / "notes").rmdir()
    (target / "script.json").write_bytes(b"")
    with pytest.raises(OptionError, match=r"its script\.json is missing or of another size than its manifest says"):
        replace(target)
    open_bundle(write_bundle(tmp_path / "y.dsedge", ["a"]).path)
    replace(tmp_path / "y.dsedge")
    assert files(tmp_path / "y.dsedge") == ["new"]


def test_n35_a_bundle_of_another_version_is_replaced(tmp_path: Path) -> None:
    for version in (1, "1.0", "7.3"):
        target = write_bundle(tmp_path / f"{version}.dsedge", ["a"]).path
        data = json.loads((target / "manifest.json").read_text())
        (target / "manifest.json").write_text(json.dumps({**data, "format": version, "spec": {"heads": 1}}))
        replace(target)
        assert files(target) == ["new"]


def test_n35_what_appears_in_the_target_meanwhile_stays(tmp_path: Path) -> None:
    target = write_bundle(tmp_path / "x.dsedge", ["a"]).path

    def publish() -> None:
        with BundleFolder(target) as folder:
            (folder.path / "new").write_text("new")
            (target / "data.db").write_bytes(b"mine")
            folder.commit()

    with pytest.raises(OptionError, match=r"holds data\.db"):
        publish()
    assert (target / "data.db").read_bytes() == b"mine"
    assert [path.name for path in tmp_path.iterdir()] == ["x.dsedge"]


def test_export_replaces_only_with_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tiny_llama(tmp_path / "source")
    target = write_bundle(tmp_path / "x.dsedge", ["a"]).path
    assert main(["export", str(source), "-o", "x.dsedge"]) == 2
    assert "x.dsedge: is there already; --force replaces a bundle" in capsys.readouterr().err
    assert open_bundle(target).spec.family == "scripted"
    (target / "data.db").write_bytes(b"mine")
    assert main(["export", str(source), "-o", "x.dsedge", "--force"]) == 2
    assert "holds data.db, which is no part of the bundle there" in capsys.readouterr().err
    (target / "data.db").unlink()
    assert main(["export", str(source), "-o", "x.dsedge", "--force"]) == 0
    assert open_bundle(target).spec.family == "llama"
    assert main(["export", "--variants", f"sub1b={source}", "-o", "set", "--name", "tale"]) == 0
    assert main(["export", "--variants", f"sub1b={source}", "-o", "set", "--name", "tale"]) == 2
    assert "tale-sub1b.dsedge: is there already; --force" in capsys.readouterr().err
    assert main(["export", "--variants", f"sub1b={source}", "-o", "set", "--name", "tale", "--force"]) == 0


# --- what it leaves ---------------------------------------------------------------------------------------------------


@pytest.fixture
def unprivileged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modes of folders count for root too: nothing is removed from, or moved out of, one that is write-protected."""
    unlink, rmdir, rename = os.unlink, os.rmdir, os.rename

    def allow(folder: Path | int) -> None:
        if not os.stat(folder).st_mode & 0o200:
            raise PermissionError(13, "Permission denied", str(folder))

    def checked_unlink(path: Any, *, dir_fd: int | None = None) -> None:
        allow(Path(path).parent if dir_fd is None else dir_fd)
        unlink(path, dir_fd=dir_fd)

    def checked_rmdir(path: Any, *, dir_fd: int | None = None) -> None:
        allow(Path(path).parent if dir_fd is None else dir_fd)
        rmdir(path, dir_fd=dir_fd)

    def checked_rename(source: Any, target: Any) -> None:
        for folder in (source, target):
            if Path(folder).is_dir():
                allow(folder)  # its entry `..` changes
        rename(source, target)

    monkeypatch.setattr(os, "unlink", checked_unlink)
    monkeypatch.setattr(os, "rmdir", checked_rmdir)
    monkeypatch.setattr(os, "rename", checked_rename)
    monkeypatch.setattr(os, "replace", checked_rename)


def protect(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        os.chmod(path, 0o555 if path.is_dir() else 0o444)


@pytest.mark.usefixtures("unprivileged")
def test_n35_an_old_read_only_bundle_is_replaced_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for system in (sys.platform, "freebsd"):  # the latter cannot swap two folders in one step
        monkeypatch.setattr("exporters.bundle_folder.sys.platform", system)
        target = write_bundle(tmp_path / "x.dsedge", ["a"]).path
        (target / "report").mkdir()
        (target / "report" / "quality.json").write_bytes(b"{}")
        entry = {"size": 2, "sha256": sha256(target / "report" / "quality.json")}
        change_manifest(target, lambda data, entry=entry: data["files"].update({"report/quality.json": entry}))
        protect(target)
        replace(target)
        assert files(tmp_path) == ["x.dsedge", "x.dsedge/new"]
        remove_tree(target)


@pytest.mark.usefixtures("unprivileged")
def test_n35_a_read_only_remnant_holds_up_no_export(tmp_path: Path) -> None:
    work = tmp_path / ".x.dsedge.partial-abc"
    (work / "bundle" / "report").mkdir(parents=True)
    (work / "bundle" / "report" / "quality.json").write_bytes(b"{}")
    protect(work)
    replace(tmp_path / "x.dsedge")
    assert files(tmp_path) == ["x.dsedge", "x.dsedge/new"]


def test_n35_a_remnant_that_cannot_be_removed_holds_up_no_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".x.dsedge.partial-abc").mkdir()

    def refuse(folder: Path) -> None:
        raise PermissionError(1, "Operation not permitted", str(folder))

    with monkeypatch.context() as patch:
        patch.setattr("exporters.bundle_folder.remove_tree", refuse)
        replace(tmp_path / "x.dsedge")
    assert (tmp_path / "x.dsedge" / "new").exists()


@pytest.mark.usefixtures("unprivileged")
def test_n35_a_read_only_model_is_removed_from_the_store() -> None:
    protect(write_bundle(store.place("x"), ["a"]).path)
    store.remove("x")
    assert list(store.folder().iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="no umask there")
@pytest.mark.parametrize(("mask", "folder", "file"), [(0o022, 0o755, 0o644), (0o077, 0o700, 0o600), (0, 0o777, 0o666)])
def test_n35_the_folder_follows_the_umask(mask: int, folder: int, file: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        replace(tmp_path / "x.dsedge")
        write_whole(tmp_path / "catalog.toml", "", mode=0o666)
        write_whole(tmp_path / "private", "")
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in [*tmp_path.iterdir(), tmp_path / "x.dsedge" / "new"]}
    assert modes == {"x.dsedge": folder, "new": file, "catalog.toml": file, "private": 0o600}


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals there")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_n35_a_signal_to_end_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    tiny_llama(tmp_path / "source")
    program = (
        "import sys, time; from exporters import encoding; from edge.cli import main\n"
        "def stuck(*arguments, **options):\n"
        "    print('inside', flush=True); time.sleep(60)\n"
        "encoding.write_weights = stuck\n"
        "sys.exit(main(['export', 'source', '-o', 'x.dsedge', '--effort', 'none']))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as child:  # fmt: skip
        assert child.stdout is not None
        assert child.stdout.readline() == "inside\n"
        assert [path.name[:18] for path in tmp_path.iterdir() if path.name != "source"] == [".x.dsedge.partial-"]
        child.send_signal(number)
        _, errors = child.communicate(timeout=30)
    assert (child.returncode, "Traceback" in errors) == (128 + number, False)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


# --- N36: nothing that is listed is lost ------------------------------------------------------------------------------


def test_n36_a_listed_lock_file_comes_into_the_store(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "x.dsedge", ["a"]).path
    for name in (".lock", "lock", "bundle", "old"):
        (bundle / name).write_text(name)
        entry = {"size": len(name), "sha256": sha256(bundle / name)}
        change_manifest(bundle, lambda data, name=name, entry=entry: data["files"].update({name: entry}))
    assert main(["import", str(bundle)]) == 0
    assert files(store.bundle_path("x")) == files(bundle)
    assert open_bundle(store.bundle_path("x")).read_text(".lock") == ".lock"
