"""What people call models: any case, common names of other programs, repositories of the hub."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge import store
from edge.catalog import find, load_catalog
from edge.cli import main
from edge.errors import NotFoundError
from edge.naming import canonical, is_repository, repository_name, split_repository
from runtimes.scripted import write_bundle


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSEDGE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DSEDGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DSEDGE_CATALOG", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("text", "name"), [
    ("SmolLM2-135M-Instruct", "smollm2-135m-instruct"),
    ("qwen3:0.6b", "qwen3-0.6b"),
    ("Qwen3:0.6B", "qwen3-0.6b"),
    ("llama3.2:1b", "llama-3.2-1b-instruct"),
    ("gemma3:270m", "gemma3-270m-it"),
    ("Qwen/Qwen3-0.6B", "qwen3-0.6b"),
    ("qwen/qwen3-0.6b", "qwen3-0.6b"),
    ("allenai/OLMo-2-1124-7B-Instruct", "olmo-2-7b-instruct"),
    ("MYMODEL", "MyModel"),
    ("org/repo", "org--repo"),
    ("org/repo/Model-Q4_K_M.gguf", "org--repo--Model-Q4_K_M"),
    ("gpt", "gpt"),
    ("./org/repo", "./org/repo"),
    ("~/repo", "~/repo"),
    ("/org/repo", "/org/repo"),
    ("org/repo/more/x.gguf", "org/repo/more/x.gguf"),
    ("out/x.dsedge", "out/x.dsedge"),
])  # fmt: skip
def test_what_a_name_means(text: str, name: str) -> None:
    assert canonical(text, ["MyModel"], load_catalog()) == name


def test_a_name_of_the_store_comes_first() -> None:
    assert canonical("Smollm3", ["smollm3"], load_catalog()) == "smollm3"
    assert canonical("Smollm3", [], load_catalog()) == "smollm3-3b"


def test_common_names_lead_to_one_model_each() -> None:
    taken: dict[str, str] = {}
    models = load_catalog().models
    for model in models.values():
        for alias in model.aliases:
            assert taken.setdefault(alias.casefold(), model.name) == model.name
            assert alias not in models
    assert len(taken) > 25


def test_a_path_in_a_folder_that_is_here_is_no_repository(tmp_path: Path) -> None:
    assert is_repository("models/llama")
    (tmp_path / "models").mkdir()
    assert not is_repository("models/llama")
    assert split_repository("a/b/c.gguf") == ("a/b", "c.gguf")
    assert repository_name("a/b/c.gguf") == "a--b--c"


@pytest.mark.parametrize(("text", "near"), [
    ("qwen3-0.6", "qwen3-0.6b"),
    ("smolm2-135m-instruct", "smollm2-135m-instruct"),
    ("lama3.2:1b", "llama3.2:1b"),
    ("granite", "granite-3.3-2b-instruct"),
])  # fmt: skip
def test_a_misspelt_name_is_answered_with_the_likely_one(text: str, near: str) -> None:
    for look_up in (find, store.resolve, lambda text: main(["pull", text])):
        if look_up in (find, store.resolve):
            with pytest.raises(NotFoundError, match="did you mean") as caught:
                look_up(text)
            assert near in str(caught.value).partition("did you mean")[2]
        else:
            assert look_up(text) == 2


def test_a_model_runs_and_is_removed_under_every_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_bundle(store.place("qwen3-0.6b"), ["yes"])
    for text in ("qwen3-0.6b", "QWEN3-0.6B", "qwen3:0.6b", "Qwen/Qwen3-0.6B"):
        assert store.resolve(text) == store.bundle_path("qwen3-0.6b")
        assert not store.to_pull(text)
    write_bundle(store.place("org--repo"), ["yes"])
    assert store.resolve("org/repo") == store.bundle_path("org--repo")
    assert main(["rm", "Qwen3:0.6b"]) == 0
    assert "removed qwen3-0.6b" in capsys.readouterr().err
    assert main(["rm", "org/repo"]) == 0
    assert store.names() == []
    assert store.to_pull("qwen3:0.6b")
    assert store.to_pull("org/repo")
    assert not store.to_pull("gpt")
    with pytest.raises(NotFoundError, match="`dsedge pull org/repo` looks for it on the Hugging Face hub"):
        store.resolve("org/repo")
