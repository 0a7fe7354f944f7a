"""A lock that is held is no error; files that cannot be locked are one."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from edge.locking import try_lock


def test_a_lock_is_for_one(tmp_path: Path) -> None:
    with open(tmp_path / "lock", "wb") as first, open(tmp_path / "lock", "wb") as second:
        assert try_lock(first)
        assert not try_lock(second)
    with open(tmp_path / "lock", "wb") as again:
        assert try_lock(again)


def test_a_file_system_without_locks_is_no_other_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: object, operation: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with open(tmp_path / "lock", "wb") as file, pytest.raises(OSError, match="No locks available"):
        try_lock(file)
