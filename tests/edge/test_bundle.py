"""Opening a bundle: what is whole opens, what is not is refused in one line, whatever the manifest says."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.bundle import Bundle, Manifest, open_bundle, verify_bundle
from edge.errors import BundleError, NotFoundError
from edge.seal import seal
from runtimes.scripted import write_bundle
from tests.edge.scripted import change_manifest

Edit = Callable[[Callable[[dict[str, Any]], object]], None]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DSEDGE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "x.dsedge", ["hello"]).path


@pytest.fixture
def edit(bundle: Path) -> Edit:
    """Change the manifest and write it back."""

    return partial(change_manifest, bundle)


def entry(content: bytes) -> dict[str, Any]:
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def both(path: Path, words: str) -> None:
    """Refused by the quick opening and by the full one."""
    for opening in (open_bundle, verify_bundle):
        with pytest.raises(BundleError, match=words) as caught:
            opening(path)
        assert "\n" not in str(caught.value)


def test_a_whole_bundle_opens_and_its_manifest_round_trips(bundle: Path) -> None:
    opened = open_bundle(bundle)
    assert opened == verify_bundle(str(bundle))
    assert Manifest.from_json(json.loads(json.dumps(opened.manifest.to_json()))) == opened.manifest
    assert opened.manifest.tokenizer.eos == (256,)
    assert opened.read_text("chat_template.jinja") is not None
    assert opened.read_text("nothing.txt") is None
    assert opened.weights.read("norm").tolist() == [0.0, 0.0]


def test_a_payload_that_is_not_the_specs_is_refused_at_opening(bundle: Path, edit: Edit) -> None:
    edit(lambda data: data["spec"]["layers"][0]["mlp"].update(size=3))
    both(bundle, r"tensor 'layers\.0\.mlp\.gate' is F32 \[2, 2\], F32 \[3, 2\] is needed")
    edit(lambda data: data["spec"]["layers"][0]["mlp"].update(size=2))
    edit(lambda data: data["schemes"].update(embed="int4-g32-sym"))
    both(bundle, r"tensor 'embed\.codes' is missing")


def test_a_moved_bundle_opens(bundle: Path, tmp_path: Path) -> None:
    shutil.move(bundle, tmp_path / "elsewhere.dsedge")
    assert open_bundle(tmp_path / "elsewhere.dsedge").path == (tmp_path / "elsewhere.dsedge").resolve()


@pytest.mark.parametrize("name", ["absent.dsedge", "file", "nul\0"])
def test_no_bundle_there(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(NotFoundError, match="no bundle there"):
        open_bundle(tmp_path / name)


def test_an_empty_folder_is_an_unfinished_bundle(tmp_path: Path) -> None:
    both(tmp_path, "holds no manifest.json")


@pytest.mark.parametrize(
    "name",
    ["/etc/hostname", "../outside", "a/../../outside", "..", ".", "./script.json/..", "..\\outside", "C:outside",
     "C:/outside", "\\\\server\\share", "", "//etc/hostname"],
)  # fmt: skip
def test_a_path_that_leaves_the_bundle(name: str, bundle: Path, edit: Edit) -> None:
    (bundle.parent / "outside").write_bytes(b"secret")
    edit(lambda data: data["files"].update({name: entry(b"secret")}))
    both(bundle, "which leaves the bundle")


@pytest.mark.parametrize("name", ["nul\0.txt", "half\ud800", "line\nbreak", "esc\x1b[2J"])
def test_a_name_that_no_file_should_have(name: str, bundle: Path, edit: Edit) -> None:
    edit(lambda data: data["files"].update({name: entry(b"")}))
    both(bundle, "can be no file's name")


def test_links_are_refused_at_every_level(bundle: Path, edit: Edit) -> None:
    outside = bundle.parent / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    (bundle / "link").symlink_to(outside / "secret")
    (bundle / "folder").symlink_to(outside)
    edit(lambda data: data["files"].update({"link": entry(b"secret")}))
    both(bundle, "link: is a link")
    edit(lambda data: (data["files"].pop("link"), data["files"].update({"folder/secret": entry(b"secret")})))
    both(bundle, "folder: is a link")
    edit(lambda data: data["files"].pop("folder/secret"))
    open_bundle(bundle)  # what the manifest does not name is nobody's business
    shutil.move(bundle / "manifest.json", outside / "manifest.json")
    (bundle / "manifest.json").symlink_to(outside / "manifest.json")
    both(bundle, "no real file")


def test_a_pipe_never_blocks_the_opening(bundle: Path, edit: Edit) -> None:
    os.mkfifo(bundle / "pipe")
    edit(lambda data: data["files"].update({"pipe": entry(b"")}))
    both(bundle, "pipe: 0 bytes where the manifest says 0")
    (bundle / "manifest.json").unlink()
    os.mkfifo(bundle / "manifest.json")
    both(bundle, "no real file")


def test_wrong_size_wrong_content_and_missing(bundle: Path) -> None:
    path = bundle / "script.json"
    content = path.read_bytes()
    path.write_bytes(content + b" ")
    both(bundle, f"script.json: {len(content) + 1} bytes where the manifest says {len(content)}")
    path.write_bytes(content.replace(b"hello", b"jello"))
    both(bundle, "script.json: its SHA-256 is not the manifest's")
    path.unlink()
    both(bundle, "script.json: missing")
    path.mkdir()
    both(bundle, "script.json: ")


def test_a_change_after_caching_is_seen(bundle: Path) -> None:
    open_bundle(bundle)
    path = bundle / "script.json"
    content, before = path.read_bytes(), path.stat()
    path.write_bytes(content.replace(b"hello", b"jello"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    both(bundle, "script.json: its SHA-256")
    # With size, inode and time as they were, opening trusts the cache: that is what `verify` is for.
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    open_bundle(bundle)
    with pytest.raises(BundleError, match=r"script\.json: its SHA-256"):
        verify_bundle(bundle)


def test_known_files_are_not_read_again(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []

    def counting(path: Path) -> str:
        read.append(path)
        return hashlib.sha256(path.read_bytes()).hexdigest()

    monkeypatch.setattr("edge.bundle_files.sha256", counting)
    open_bundle(bundle)
    assert read == []  # `write_bundle` opened it
    verify_bundle(bundle)
    assert len(read) == 4


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'"x"', b"[" * 100_000, b"\xff"])
def test_a_damaged_cache_costs_only_time(content: bytes, bundle: Path, cache: Path) -> None:
    (cache / "sums.json").write_bytes(content)
    open_bundle(bundle)


@pytest.mark.parametrize("wrong", [7, None, "0" * 64, ["x"]])
def test_wrong_sums_in_the_cache_refuse_no_good_bundle(wrong: Any, bundle: Path, cache: Path) -> None:
    sums = json.loads((cache / "sums.json").read_text())
    (cache / "sums.json").write_text(json.dumps(dict.fromkeys(sums, wrong)))
    open_bundle(bundle)
    assert json.loads((cache / "sums.json").read_text()) == sums


def test_a_cache_folder_that_cannot_be_used(bundle: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSEDGE_CACHE", str(bundle / "manifest.json"))  # a file: nothing can be made below it
    open_bundle(bundle)
    monkeypatch.setenv("DSEDGE_CACHE", str(cache))
    (cache / "sums.json").unlink()
    (cache / "sums.json").mkdir()
    open_bundle(bundle)


def test_a_file_that_cannot_be_read(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("edge.bundle_files.sha256", refuse)
    with pytest.raises(BundleError, match="cannot be read: Permission denied"):
        verify_bundle(bundle)


@pytest.mark.parametrize("version", ["1", "1.", "1.-1", "\u0662.\u0660", 1.0, True, None, [1]])
def test_another_format_version(version: Any, bundle: Path, edit: Edit) -> None:
    edit(lambda data: data.update(format=version))
    both(bundle, r"manifest\.json: manifest format .*; this version reads 2\.0: export or pull the model again")


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"null", b"[" * 100_000, b"\xff\xfe", b'"text"'])
def test_a_manifest_that_is_none(content: bytes, bundle: Path) -> None:
    (bundle / "manifest.json").write_bytes(content)
    both(bundle, "manifest")


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (lambda data: data.pop("tokenizer"), "KeyError: 'tokenizer'"),
        (lambda data: data.update(extra=1, other=2), r"manifest\.json: .*unknown keys 'extra', 'other'"),
        (lambda data: data["tokenizer"].update(extra=1), "unknown keys 'extra'"),
        (lambda data: data["files"]["script.json"].update(extra=1), "unknown keys 'extra'"),
        (lambda data: data.update(name=5), "name must be a text"),
        (lambda data: data.update(schemes=[]), "schemes must be a table"),
        (lambda data: data.update(schemes={"embed": 4}), "schemes must be a table"),
        (lambda data: data.update(recipe=[1]), "recipe must be a table"),
        (lambda data: data.update(toolchain={"onnx": None}), "toolchain must be a table"),
        (lambda data: data["tokenizer"].update(eos=[260]), "outside the vocabulary"),
        (lambda data: data["tokenizer"].update(eos=[True]), "outside the vocabulary"),
        (lambda data: data["tokenizer"].update(eos="2"), "'2' is no list"),
        (lambda data: data["tokenizer"].update(eos_found={"2": "ab"}), "'ab' is no list"),
        (lambda data: data["tokenizer"].update(bos=-1), "outside the vocabulary"),
        (lambda data: data["tokenizer"].update(add_bos="no"), "add_bos must be"),
        (lambda data: data["tokenizer"].update(special=["a"]), "special must be a table"),
        (lambda data: data["files"].update(x={"size": -1, "sha256": ""}), "size or sha256"),
        (lambda data: data["files"].pop("tokenizer.json"), "lists no tokenizer.json"),
        (lambda data: data["files"].pop("weights.safetensors"), "lists no weights.safetensors"),
        (lambda data: data["graphs"].update(a=graph("decoder.onnx")), "'decoder.onnx' is not among the files"),
        (lambda data: data["graphs"].update(a=graph(["decoder.onnx"])), "must be texts"),
        (lambda data: data["spec"]["layers"][0]["attention"].update(kv_heads=0), "kv_heads is 0"),
    ],
)
def test_manifest_fields_are_checked(how: Callable[[dict[str, Any]], object], words: str, bundle: Path, edit: Edit,
) -> None:  # fmt: skip
    edit(how)
    both(bundle, words)


def graph(file: Any) -> dict[str, Any]:
    return {"file": file, "kind": "onnx", "precision": {}, "inputs": ["a"], "outputs": ["b"]}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def places(data: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value in a JSON document."""
    found = [prefix]
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        found += places(value, (*prefix, key))
    return found


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("fuzz")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DSEDGE_CACHE", str(folder / "cache"))
        opened = write_bundle(folder / "x.dsedge", ["a"])
    path = opened.path / "manifest.json"
    data = json.loads(path.read_text())
    data["graphs"]["decoder"] = {**graph("script.json"), "kind": "script"}
    data["schemes"]["head"] = "float32"
    path.write_text(seal(data))
    (opened.path / "original").write_text(json.dumps(data))
    return opened


@given(place=st.integers(0, 10_000), value=JSON, remove=st.booleans())
@settings(max_examples=300, deadline=None)
def test_any_change_of_the_manifest_opens_or_is_a_bundle_error(
    fuzzed: Bundle, place: int, value: Any, remove: bool
) -> None:
    data = json.loads((fuzzed.path / "original").read_text())
    everywhere = places(data)
    path = everywhere[place % len(everywhere)]
    target = data
    for key in path[:-1]:
        target = target[key]
    if not path:
        data = value
    elif remove:
        del target[path[-1]]
    else:
        target[path[-1]] = value
    (fuzzed.path / "manifest.json").write_text(seal(data) if isinstance(data, dict) else json.dumps(data))
    try:
        opened = open_bundle(fuzzed.path)
        assert opened.graph.weights
        assert opened.weights.read("norm").shape == (2,)
    except BundleError:
        pass
