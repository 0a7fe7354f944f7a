"""The local store: names, paths, and what resolves to what."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge import store
from edge.errors import NotFoundError, OptionError, StorageError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DSEDGE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def make(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "manifest.json").write_text("{}")
    return path


def test_an_empty_store_lists_nothing_and_creates_nothing(home: Path) -> None:
    assert store.names() == []
    assert not home.exists()


def test_names_are_sorted_and_leave_out_what_is_not_a_bundle(home: Path) -> None:
    for name in ("b.dsedge", "a-1.5b.dsedge", ".removed-x", ".b.dsedge", "notes"):
        make(home / "models" / name)
    for name in ("con.dsedge", "c..dsedge", "d.dsedge.dsedge"):  # which no name can stand for
        make(home / "models" / name)
    (home / "models" / "file.dsedge").write_text("")
    assert store.names() == ["a-1.5b", "b"]


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../evil",
        "a/b",
        "a\\b",
        "-rf",
        ".hidden",
        "c:",
        "x" * 101,
        "a.dsedge",
        "a\n",
        "a.",
        "ä",
        "con",
        "NUL.x",
        "Com1",
    ],
)
def test_names_that_could_leave_the_store_are_refused(name: str) -> None:
    with pytest.raises(OptionError, match="cannot name a model"):
        store.bundle_path(name)


def test_a_name_resolves_to_the_store_before_a_folder_of_that_name_here(home: Path, tmp_path: Path) -> None:
    local = make(tmp_path / "demo")
    assert store.resolve("demo") == Path("demo")
    stored = make(home / "models" / "demo.dsedge")
    assert store.resolve("demo") == stored
    assert store.resolve("./demo") == Path("demo")
    assert store.resolve(local) == local


def test_a_suffix_makes_it_a_path(home: Path, tmp_path: Path) -> None:
    make(home / "models" / "demo.dsedge")
    with pytest.raises(NotFoundError, match=r"demo\.dsedge: no bundle there"):
        store.resolve("demo.dsedge")
    make(tmp_path / "demo.dsedge")
    assert store.resolve("demo.dsedge") == Path("demo.dsedge")


def test_a_catalogued_name_says_how_to_get_it() -> None:
    with pytest.raises(NotFoundError, match="dsedge pull smollm2-135m-instruct"):
        store.resolve("smollm2-135m-instruct")


def test_an_unknown_name_lists_store_and_catalogue(home: Path) -> None:
    make(home / "models" / "mine.dsedge")
    with pytest.raises(NotFoundError, match=r"no model 'mien'; did you mean mine\?"):
        store.resolve("mien")
    with pytest.raises(NotFoundError, match=r"store has mine, the catalogue .*, smollm2-135m-instruct") as caught:
        store.resolve("xyz")
    assert "PROMPT" not in str(caught.value)


def test_a_prompt_in_the_place_of_the_model_is_explained() -> None:
    with pytest.raises(NotFoundError, match="dsedge run smollm2-135m-instruct PROMPT"):
        store.resolve("What is the capital of France?")


def test_remove_takes_the_whole_bundle_and_only_it(home: Path) -> None:
    make(home / "models" / "a.dsedge")
    make(home / "models" / "b.dsedge")
    store.remove("a")
    assert [path.name for path in (home / "models").iterdir()] == ["b.dsedge"]
    with pytest.raises(NotFoundError, match="no model 'a'; it has b"):
        store.remove("a")


def test_a_store_that_cannot_be_read_is_no_bug(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(StorageError, match="models: cannot be read: Permission denied; see DSEDGE_HOME"):
        store.names()


def test_what_cannot_be_moved_away_leaves_no_folder_behind(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(home / "models" / "a.dsedge")

    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(13, "Permission denied", str(source))

    monkeypatch.setattr("edge.store.os.replace", refuse)
    with pytest.raises(StorageError, match="cannot be removed"):
        store.remove("a")
    assert [path.name for path in (home / "models").iterdir()] == ["a.dsedge"]
