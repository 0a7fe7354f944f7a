"""A small file is the old one or the new one, and nothing lies beside it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from edge.files import write_whole


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=type)
def test_u7_what_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException
) -> None:
    path = tmp_path / "a.json"
    write_whole(path, "old")

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(f"edge.files.os.{step}", fail)
    with pytest.raises(type(error)):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_text_has_the_same_bytes_everywhere(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_whole(path, "é\r\n\n", mode=0o644)
    assert path.read_bytes() == b"\xc3\xa9\r\n\n"
    if sys.platform != "win32":
        assert path.stat().st_mode & 0o777 == 0o644
        write_whole(path, "")
        assert path.stat().st_mode & 0o777 == 0o600
