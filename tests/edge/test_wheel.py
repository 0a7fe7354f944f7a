"""Wheels that are damaged, a Python without pip, and what a killed download left."""

from __future__ import annotations

import errno
import sys
import zipfile
from pathlib import Path

import pytest

from edge.errors import UserError
from edge.progress import Transfer
from edge.sources import wheel


def quiet(stage: str, done: float, transfer: Transfer | None = None) -> None:
    assert 0.0 <= done <= 1.0


def deliver(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """A wheel of these bytes in the place of pip's."""

    def fetch(requirement: str, folder: Path, progress: object) -> Path:
        path = folder / "demo-1.0-py3-none-any.whl"
        path.write_bytes(content)
        return path

    monkeypatch.setattr(wheel, "_download_wheel", fetch)


def packed(path: Path) -> bytes:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data", bytes(range(256)) * 40)
    return path.read_bytes()


def pip_says(lines: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python whose pip fails with these lines; beside it, NAME.tmp says where its temporary files would lie."""
    python = folder / "python"
    said = "".join(f"echo '{line}'\n" for line in lines)
    python.write_text(f'#!/bin/sh\necho "$TMPDIR" > "$0.tmp"\n{said}exit 2\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    return python


TRACEBACK = ["ERROR: Exception:", "Traceback (most recent call last):", "  File x, line 1"]


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script in the place of Python")
def test_n39_a_disk_that_is_full_is_said_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporary files lie beside the model's, not in a /tmp of memory."""
    python = pip_says([*TRACEBACK, "OSError: [Errno 28] No space left on device"], tmp_path, monkeypatch)
    with pytest.raises(OSError, match="No space left on device") as caught:
        wheel.download([("demo==1.0", "data")], tmp_path / "cache", 1, quiet)
    assert caught.value.errno == errno.ENOSPC
    assert Path(python.with_name("python.tmp").read_text().strip()).parent == tmp_path


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script in the place of Python")
@pytest.mark.parametrize(("lines", "reason"), [
    ([*TRACEBACK, "pip._vendor.requests.exceptions.InvalidSchema: Missing dependencies for SOCKS support."],
     "InvalidSchema: Missing dependencies for SOCKS support."),
    (["ERROR: No matching distribution found for demo==1.0", "hint: look"], "No matching distribution found for demo"),
    ([], "pip exited with 2"),
])  # fmt: skip
def test_n10_what_pip_fails_of_is_its_last_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str], reason: str
) -> None:
    pip_says(lines, tmp_path, monkeypatch)
    with pytest.raises(UserError, match=f"^{reason}"):
        wheel.download([("demo==1.0", "data")], tmp_path / "cache", 1, quiet)


@pytest.mark.parametrize("change", ["data", "method", "flag", "cut"])
def test_a_damaged_wheel_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    content = bytearray(packed(tmp_path / "whole.zip"))
    central = content.index(b"PK\x01\x02")
    if change == "data":
        content[34:60] = b"\xff" * 26  # no deflated stream
    elif change == "method":
        content[8] = content[central + 10] = 97
    elif change == "flag":
        content[6] = content[central + 8] = 1  # encrypted
    else:
        del content[central - 100 : central]
    deliver(monkeypatch, bytes(content))
    with pytest.raises(UserError, match=r"demo-1\.0-py3-none-any\.whl is no readable wheel"):
        wheel.download([("demo==1.0", "data")], tmp_path / "out", 1, quiet)


def test_what_a_killed_download_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "cache" / "out"
    (target.parent / "wheel-abc").mkdir(parents=True)
    (target.parent / "wheel-abc" / "big.whl").write_text("half")
    (target.parent / "wheel-of-fortune.gguf").write_text("a model")
    deliver(monkeypatch, packed(tmp_path / "whole.zip"))
    wheel.download([("demo==1.0", "data")], target, 1, quiet)
    assert sorted(path.name for path in target.parent.iterdir()) == ["out", "wheel-of-fortune.gguf"]


def test_a_python_without_pip_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$0: No module named pip" >&2\nexit 1\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(UserError, match="has no pip to fetch packages with; `python -m ensurepip` installs it"):
        wheel.download([("demo==1.0", "data")], tmp_path / "out", 1, quiet)
