"""The output folder: whole or not at all, and never in place of something else."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edge.errors import OptionError, StorageError
from edge.locking import holding
from exporters import bundle_folder
from exporters.bundle_folder import BundleFolder


def manifest(text: str) -> str:
    """One that names the only other file which `publish` writes."""
    files = {"report/quality.json": {"size": len(text), "sha256": ""}}
    return json.dumps({"format": "1.0", "name": text, "spec": {}, "tokenizer": {}, "files": files})


def name(target: Path) -> str:
    return str(json.loads((target / "manifest.json").read_text())["name"])


def publish(target: Path, text: str) -> None:
    with BundleFolder(target) as folder:
        (folder.path / "manifest.json").write_text(manifest(text))
        (folder.path / "report").mkdir()
        (folder.path / "report" / "quality.json").write_text(text)
        folder.commit()


def listing(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


WHOLE = ["x.dsedge", "x.dsedge/manifest.json", "x.dsedge/report", "x.dsedge/report/quality.json"]


def test_it_appears_whole_and_takes_the_place_of_an_older_one(tmp_path: Path) -> None:
    target = tmp_path / "x.dsedge"
    for text in ("old", "new"):
        publish(target, text)
        assert listing(tmp_path) == WHOLE
        assert (target / "report" / "quality.json").read_text() == text
    empty = tmp_path / "empty.dsedge"
    empty.mkdir()
    publish(empty, "new")
    assert name(empty) == "new"


def test_a_relative_target_stays_where_it_was_when_the_process_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    with BundleFolder(Path("x.dsedge")) as folder:
        monkeypatch.chdir("/")
        (folder.path / "manifest.json").write_text("new")
        assert folder.commit() == tmp_path / "x.dsedge"


def fail(target: Path, error: BaseException) -> None:
    """What a stage that fails after a file of a thousand bytes does."""
    with BundleFolder(target) as folder:
        (folder.path / "tokenizer.json").write_bytes(b"x" * 1000)
        raise error


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt()])
def test_without_a_commit_nothing_stays(error: BaseException, tmp_path: Path) -> None:
    publish(tmp_path / "x.dsedge", "old")
    with pytest.raises(type(error)):
        fail(tmp_path / "x.dsedge", error)
    assert listing(tmp_path) == WHOLE
    assert name(tmp_path / "x.dsedge") == "old"


def test_what_is_no_place_for_a_bundle(tmp_path: Path) -> None:
    (tmp_path / "photos.dsedge").mkdir()
    (tmp_path / "photos.dsedge" / "holiday.jpg").write_bytes(b"x")
    (tmp_path / "file.dsedge").write_bytes(b"x")
    for found in ("photos.dsedge", "file.dsedge"):
        with pytest.raises(OptionError, match=f"{found}: exists and is no bundle; it stays: choose another"):
            BundleFolder(tmp_path / found)
    with pytest.raises(OptionError, match=r"a bundle's name ends in \.dsedge"):
        BundleFolder(tmp_path / "bundle")
    publish(tmp_path / "real.dsedge", "old")
    (tmp_path / "link.dsedge").symlink_to(tmp_path / "real.dsedge")
    (tmp_path / "dangling.dsedge").symlink_to(tmp_path / "nowhere.dsedge")
    for found in ("link.dsedge", "dangling.dsedge"):
        with pytest.raises(OptionError, match=f"{found}: is a link"):
            BundleFolder(tmp_path / found)
    assert (tmp_path / "photos.dsedge" / "holiday.jpg").exists()


def test_u7_a_missing_parent_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="absent: no such folder; create it"):
        publish(tmp_path / "absent" / "x.dsedge", "new")
    assert listing(tmp_path) == []


def test_u7_errors_of_the_file_system_name_place_and_bytes(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "decoder.onnx")
    with pytest.raises(StorageError, match=r"x\.dsedge: the file system has no room .* at least 1000 bytes are needed"):
        fail(tmp_path / "x.dsedge", full)
    with pytest.raises(StorageError, match=r"x\.dsedge: cannot be written: Input/output error"):
        fail(tmp_path / "x.dsedge", OSError(errno.EIO, os.strerror(errno.EIO)))
    assert listing(tmp_path) == []


def test_u7_a_disk_that_fails_when_it_is_synced_leaves_the_old_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(tmp_path / "x.dsedge", "old")

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageError, match=r"at least \d+ bytes are needed"):
        publish(tmp_path / "x.dsedge", "new")
    assert listing(tmp_path) == WHOLE
    assert name(tmp_path / "x.dsedge") == "old"


def test_u7_everything_is_synced_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And while it is, another export to the same place still finds the folder locked."""
    synced: list[str] = []

    def record(path: Path) -> None:
        synced.append(path.name)
        if not (tmp_path / "x.dsedge").exists():
            bundle_folder._remove_abandoned(next(tmp_path.glob(".x.dsedge.partial-*")), tmp_path / "x.dsedge")
            assert path.exists()

    monkeypatch.setattr(bundle_folder, "_sync", record)
    publish(tmp_path / "x.dsedge", "new")
    assert {"manifest.json", "quality.json", "report"} < set(synced)
    assert synced[-1] == tmp_path.name  # the rename itself, last


def test_leftovers_are_removed_by_the_next_export_and_running_ones_are_not(tmp_path: Path) -> None:
    """Names that mean something to a shell pattern, and another bundle's leftover, included."""
    target = tmp_path / "[x]*.dsedge"
    leftover = tmp_path / f".{target.name}.partial-abc"
    (leftover / "report").mkdir(parents=True)
    (leftover / "lock").write_bytes(b"")
    other = tmp_path / ".[x]y.dsedge.partial-abc"
    other.mkdir()
    with BundleFolder(target) as first:
        assert not leftover.exists()
        publish(target, "second")
        assert first.path.exists()
        (first.path / "manifest.json").write_text(manifest("first"))
        first.commit()
    assert name(target) == "first"
    assert other.exists()


def test_another_process_that_writes_is_left_alone(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from exporters.bundle_folder import BundleFolder\n"
        "with BundleFolder(Path(sys.argv[1])) as folder:\n"
        "    print(folder.path, flush=True); sys.stdin.read()\n"
    )
    target = tmp_path / "x.dsedge"
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(target)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        cwd=Path(bundle_folder.__file__).parents[1],
    )  # fmt: skip
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        theirs = Path(child.stdout.readline().strip())
        publish(target, "ours")
        assert theirs.is_dir()
        child.kill()
        child.wait()
        assert theirs.is_dir()
        publish(target, "again")
        assert not theirs.exists()
    finally:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()


def in_the_meantime(target: Path) -> subprocess.Popen[str]:
    """Another export to the same place, begun at once and given up; it has had a second to do harm."""
    program = (
        "import sys; from pathlib import Path; from exporters.bundle_folder import BundleFolder\n"
        "print('begun', flush=True)\n"
        "with BundleFolder(Path(sys.argv[1])): print('in', flush=True)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(target)], stdout=subprocess.PIPE, text=True,
        cwd=Path(bundle_folder.__file__).parents[1],
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline() == "begun\n"
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(1)
    return child


@pytest.mark.parametrize("moment", ["mkdtemp", "rename", "rmtree"])
def test_u7_an_export_that_begins_while_another_takes_or_leaves_its_folder_breaks_neither(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each moment a folder of the first is there without a lock in it: new, about to be renamed, the old bundle."""
    target = tmp_path / "x.dsedge"
    if moment == "rmtree":
        publish(target, "old")
    module: ModuleType = {"mkdtemp": tempfile, "rename": os, "rmtree": shutil}[moment]
    real = getattr(module, moment)
    others: list[subprocess.Popen[str]] = []

    def meet(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(module, moment, real)
        if moment != "mkdtemp":
            others.append(in_the_meantime(target))
        result = real(*arguments, **options)
        if moment == "mkdtemp":
            others.append(in_the_meantime(target))
        return result

    monkeypatch.setattr(module, moment, meet)
    try:
        publish(target, "new")
        assert others[0].communicate(timeout=10) == ("in\n", None)
    finally:
        for other in others:
            other.kill()
            other.communicate()
    assert others[0].returncode == 0
    assert listing(tmp_path) == WHOLE
    assert name(target) == "new"


def test_u7_the_lock_beside_the_target_is_one_that_the_last_holder_has_not_removed(tmp_path: Path) -> None:
    """Three threads take turns: none is in while another is, although each removes the file on leaving."""
    path = tmp_path / ".x.dsedge.lock"
    inside: list[int] = []
    most: list[int] = []

    def turn() -> None:
        for _ in range(100):
            with holding(path):
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.0001)
                inside.pop()

    threads = [threading.Thread(target=turn) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(most), max(most)) == (300, 1)
    assert not path.exists()


def test_u7_a_leftover_that_its_own_export_removes_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leftover = tmp_path / ".x.dsedge.partial-abc"
    leftover.mkdir()
    real = shutil.rmtree

    def twice(path: Path, **options: Any) -> None:
        if path == leftover:
            real(path)
        real(path, **options)

    monkeypatch.setattr(shutil, "rmtree", twice)
    publish(tmp_path / "x.dsedge", "new")
    assert listing(tmp_path) == WHOLE


def test_u7_a_lock_that_a_killed_export_left_holds_nobody_up(tmp_path: Path) -> None:
    (tmp_path / ".x.dsedge.lock").write_bytes(b"")
    publish(tmp_path / "x.dsedge", "new")
    assert listing(tmp_path) == WHOLE


@pytest.fixture
def no_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that cannot swap two folders in one step."""
    monkeypatch.setattr(bundle_folder.sys, "platform", "freebsd")


@pytest.mark.usefixtures("no_exchange")
def test_u7_without_an_exchange_the_old_bundle_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "x.dsedge"
    publish(target, "old")
    publish(target, "newer")
    assert (listing(tmp_path), name(target)) == (WHOLE, "newer")
    rename = os.rename
    seen: list[str] = []

    def refuse(source: Path, destination: Path) -> None:
        seen.append(Path(destination).name)
        if len(seen) == 2:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        rename(source, destination)

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(StorageError, match=r"x\.dsedge: cannot be written"):
        publish(target, "newest")
    assert name(target) == "newer"
    assert seen[1:] == ["x.dsedge", "x.dsedge"]


def test_u7_a_kill_between_the_renames_loses_nothing(tmp_path: Path) -> None:
    """The old bundle stands aside and the target is not there: the next export puts it back before it does anything."""
    target = tmp_path / "x.dsedge"
    publish(target, "old")
    (tmp_path / ".x.dsedge.partial-abc" / "bundle").mkdir(parents=True)
    target.rename(tmp_path / ".x.dsedge.partial-abc" / "old")
    with BundleFolder(target):
        assert name(target) == "old"
    assert listing(tmp_path) == WHOLE
