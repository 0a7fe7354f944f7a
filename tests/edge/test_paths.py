"""Where the user's folders are: each system's convention, and the overrides."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from edge.errors import NotFoundError, StorageError
from edge.paths import cache_folder, data_folder, expanded

VARIABLES = ("DSEDGE_HOME", "DSEDGE_CACHE", "XDG_DATA_HOME", "XDG_CACHE_HOME", "LOCALAPPDATA")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", classmethod(lambda cls: tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("platform", "data", "cache"),
    [
        ("linux", ".local/share/dsedge", ".cache/dsedge"),
        ("darwin", "Library/Application Support/dsedge", "Library/Caches/dsedge"),
        ("win32", "AppData/Local/dsedge/data", "AppData/Local/dsedge/cache"),
    ],
)
def test_conventions(platform: str, data: str, cache: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert data_folder() == home / data
    assert cache_folder() == home / cache


def test_overrides(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_DATA_HOME", "/xdg/data")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg/cache")
    assert (data_folder(), cache_folder()) == (Path("/xdg/data/dsedge"), Path("/xdg/cache/dsedge"))
    monkeypatch.setenv("DSEDGE_HOME", "/mine")
    monkeypatch.setenv("DSEDGE_CACHE", "")  # empty counts as unset
    assert (data_folder(), cache_folder()) == (Path("/mine"), Path("/xdg/cache/dsedge"))


def test_a_relative_xdg_folder_is_ignored_and_a_tilde_is_expanded(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_DATA_HOME", "data")
    assert data_folder() == home / ".local/share/dsedge"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("DSEDGE_HOME", "~/mine")
    assert data_folder() == home / "mine"


def test_without_a_home_folder_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs under a number that no user has."""

    def none(cls: type[Path]) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", classmethod(none))
    for platform in ("linux", "darwin", "win32"):
        monkeypatch.setattr(sys, "platform", platform)
        with pytest.raises(StorageError, match="set DSEDGE_HOME and DSEDGE_CACHE"):
            cache_folder()
    monkeypatch.setenv("DSEDGE_CACHE", "/mine")
    assert cache_folder() == Path("/mine")


def test_a_user_that_is_not_known() -> None:
    with pytest.raises(NotFoundError, match=r"~nobody-of-that-name/x: no such user"):
        expanded("~nobody-of-that-name/x")
