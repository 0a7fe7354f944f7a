"""Catalogue files from elsewhere: they name no place outside the cache, and any editor may have saved them."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge import download
from edge.catalog import Url, find
from edge.errors import NotFoundError, OptionError
from runtimes.scripted import write_bundle
from tests.edge.scripted import change_manifest
from tests.edge.servers import send, serving
from tests.edge.test_catalog import entry, quiet

ENTRY = """[models.%(name)s]
title = "t"
family = "llama"
variant = "7b"
license = "MIT"
size = %(size)s
file = "%(file)s"
sha256 = "%(sha256)s"
[[models.%(name)s.sources]]
kind = "path"
path = "%(path)s"
"""
GOOD = {"name": "x", "size": "1", "file": "x.gguf", "sha256": "ab" * 32, "path": "x"}


def write(folder: Path, **values: str) -> Path:
    path = folder / "catalog.toml"
    path.write_text(ENTRY % {**GOOD, **values}, encoding="utf-8")
    return path


@pytest.mark.parametrize(("values", "reason"), [
    ({"sha256": "../../../../evil"}, "it is 64 hex digits"),
    ({"sha256": ""}, "it is 64 hex digits"),
    ({"file": ".."}, "the plain name"),
    ({"file": ".lock"}, "the plain name"),
    ({"file": "a\\\\b"}, "the plain name"),
    ({"file": "c:x"}, "the plain name"),
    ({"file": "a\\u0000"}, "the plain name"),
    ({"size": "-1"}, "size is a whole number"),
    ({"name": '"../x"'}, "a name is letters"),
    ({"name": '"a b"'}, "a name is letters"),
])  # fmt: skip
def test_entries_that_would_leave_their_place(tmp_path: Path, values: dict[str, str], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        find("x", write(tmp_path, **values))


def test_a_sum_in_capitals_is_the_same_sum(tmp_path: Path) -> None:
    assert find("x", write(tmp_path, sha256="AB" * 32)).sha256 == "ab" * 32


def test_a_byte_order_mark_is_no_part_of_a_catalogue(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert find("x", path).title == "t"


def test_a_catalogue_that_is_nested_too_deep(tmp_path: Path) -> None:
    path = tmp_path / "catalog.toml"
    path.write_text("models = " + "[" * 100_000)
    with pytest.raises(OptionError, match=r"catalogue .*catalog\.toml: "):
        find("x", path)


def test_a_path_of_a_user_that_is_not_known(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="~nobody-of-that-name/x: no such user"):
        find("x", write(tmp_path, path="~nobody-of-that-name/x"))


def test_a_manifest_that_lists_itself_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its second download could be another one than was checked."""
    monkeypatch.setenv("DSEDGE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DSEDGE_CACHE", str(tmp_path / "cache"))
    bundle = write_bundle(tmp_path / "demo.dsedge", ["hi"])
    listed = {"manifest.json": {"size": 1, "sha256": "0"}}
    change_manifest(bundle.path, lambda manifest: manifest["files"].update(listed))
    text = (bundle.path / "manifest.json").read_bytes()
    with serving(lambda handler: send(handler, 200, text)) as (url, seen):
        with pytest.raises(NotFoundError, match="its manifest lists itself"):
            download.fetch(entry(Url(url), form="bundle"), quiet)
        assert sorted(path for path, _ in seen) == ["/manifest.json", "/manifest.sig"]


@pytest.mark.parametrize("requirement", [
    "--index-url=http://127.0.0.1/", "-rfile.txt", "https://models.example/x.tar.gz", "git+https://models.example/x",
    "./folder", "demo", "demo>=1", "demo==1 --pre", "demo @ https://models.example/x.tar.gz", "demo==1.*",
])  # fmt: skip
def test_a_requirement_is_a_name_and_a_version_and_nothing_else(tmp_path: Path, requirement: str) -> None:
    """pip would build a source archive at an address, which runs code of it."""
    path = write(tmp_path)
    text = path.read_text().replace('kind = "path"\npath = "x"', f'kind = "wheel"\nmembers = [["{requirement}", "x"]]')
    path.write_text(text)
    with pytest.raises(OptionError, match="is no pinned requirement, NAME==VERSION"):
        find("x", path)


@pytest.mark.parametrize("file", ["../x", "/x", "a/../x", "a//x", ""])
def test_a_file_of_the_hub_lies_in_its_repository(tmp_path: Path, file: str) -> None:
    path = write(tmp_path)
    hub = f'kind = "hub"\nrepo = "a/b"\nfile = "{file}"'
    path.write_text(path.read_text().replace('kind = "path"\npath = "x"', hub))
    with pytest.raises(OptionError, match="is no path of a file in a repository"):
        find("x", path)
