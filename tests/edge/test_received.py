"""The record of what unpinned models were: nothing of it may be lost or half written."""

from __future__ import annotations

import json
import os
from multiprocessing import get_context
from pathlib import Path

import pytest

from edge import received
from edge.errors import StorageError, UserError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DSEDGE_HOME", str(tmp_path))
    return tmp_path


def record(name: str) -> None:
    for number in range(20):
        received.check(f"{name}{number}", {"x": name})


def test_two_processes_lose_no_record(home: Path) -> None:
    context = get_context("spawn")
    workers = [context.Process(target=record, args=(name,)) for name in "abc"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    found = json.loads(received.path().read_text())
    assert found == {f"{name}{number}": {"x": name} for name in "abc" for number in range(20)}
    assert os.listdir(home) == ["received.json"]


def test_another_process_that_is_first_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look and the lock: its record is the one that ours is compared with."""
    looks: list[dict[str, dict[str, str]]] = []
    real = received._read

    def read() -> dict[str, dict[str, str]]:
        looks.append(real() if looks else {})
        return looks[-1]

    monkeypatch.setattr(received, "_read", read)
    received.path().write_text('{"demo": {"x": "theirs"}}')
    with pytest.raises(UserError, match="demo: x is not what was received first"):
        received.check("demo", {"x": "ours"})


@pytest.mark.parametrize("later", [{"x": "1", "y": "2"}, {"y": "2"}, {}])
def test_another_set_of_files_is_not_what_was_received(later: dict[str, str]) -> None:
    received.check("demo", {"x": "1"})
    with pytest.raises(UserError, match=r"demo: [xy] is not what was received first"):
        received.check("demo", later)


def test_u7_a_record_that_cannot_be_written_leaves_the_old_one(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    received.check("demo", {"x": "1"})

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("edge.files.os.fsync", full)
    with pytest.raises(StorageError, match=r"received\.json: cannot be written: No space left"):
        received.check("other", {"x": "2"})
    assert os.listdir(home) == ["received.json"]
    assert received.recorded("demo") == {"x": "1"}


def test_a_record_of_another_kind_is_refused() -> None:
    received.path().write_text('{"demo": {"x": [1]}}')
    with pytest.raises(StorageError, match="is no table of models"):
        received.check("demo", {"x": "1"})
