"""N9: one rule for text from outside, and every reader in the tree goes by it."""

from __future__ import annotations

import ast
import codecs
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import edge
from edge import catalog, memory, received, texts
from edge.bundle import TEMPLATE, read_manifest
from edge.commands.given import read_prompt, read_tools
from edge.cores import linux_cores
from exporters.checkpoint.folder_tokenizer import read_tokenizer
from exporters.checkpoint.safetensors import read_json
from exporters.quant import recipe
from runtimes.scripted import write_bundle
from tests.edge.scripted import with_template
from tests.exporters.tiny import tiny_llama

ROOT = Path(edge.__file__).parents[1]
TEXT = "é, 日本, \U0001f600\n"


@pytest.mark.parametrize("data", [
    TEXT.encode(),
    codecs.BOM_UTF8 + TEXT.encode(),
    codecs.BOM_UTF16_LE + TEXT.encode("utf-16-le"),
    codecs.BOM_UTF16_BE + TEXT.encode("utf-16-be"),
])  # fmt: skip
def test_n9_a_mark_says_the_encoding_and_is_no_part_of_the_text(data: bytes, tmp_path: Path) -> None:
    assert texts.decode(data) == TEXT
    assert texts.decode_stdin(data, "cp1252") == TEXT
    (tmp_path / "x").write_bytes(data)
    assert texts.read(tmp_path / "x") == TEXT


def test_n9_a_mark_inside_a_text_is_a_character() -> None:
    assert texts.decode("a\ufeffb".encode()) == "a\ufeffb"
    assert texts.decode(codecs.BOM_UTF8 * 2 + b"x") == "\ufeffx"


@pytest.mark.parametrize("data", [b"Gr\xf6\xdfe", b"\xff\xfea", codecs.BOM_UTF8 + b"\xff"])
def test_n9_bytes_that_are_no_text_are_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(data)
    for reader in (texts.read, texts.read_json, texts.read_toml):
        with pytest.raises(ValueError, match="decode"):
            reader(tmp_path / "x")


def test_n9_stdin_may_be_in_the_encoding_of_its_console() -> None:
    assert texts.decode_stdin("Größe".encode("cp1252"), "cp1252") == "Größe"
    assert texts.decode_stdin("Größe".encode(), "cp1252") == "Größe"
    with pytest.raises(UnicodeDecodeError):
        texts.decode_stdin("Größe".encode("cp1252"), "UTF8")


def test_n9_a_nesting_that_nobody_can_read_is_a_value_error(tmp_path: Path) -> None:
    deep = tmp_path / "x"
    deep.write_text("a = " + "[" * 100_000)
    for reader, text in ((texts.read_toml, "a = " + "[" * 100_000), (texts.read_json, "[" * 100_000)):
        deep.write_text(text)
        with pytest.raises(ValueError, match=r"nested|Invalid|recursion"):
            reader(deep)


def _marked(path: Path, encoding: str = "utf-8-sig") -> Path:
    """The file with a mark before its text."""
    path.write_text(path.read_text(encoding="utf-8"), encoding=encoding)
    return path


def _tools(folder: Path) -> Any:
    (folder / "tools.json").write_text('[{"type": "function", "function": {"name": "weather"}}]', encoding="utf-8")
    return read_tools(str(_marked(folder / "tools.json")))[0]["function"]["name"]


def _catalogue(folder: Path) -> Any:
    (folder / "c.toml").write_text("[models]", encoding="utf-8")
    return len(catalog.load_catalog(_marked(folder / "c.toml")).models) - len(catalog.shipped().models)


def _recipe(folder: Path) -> Any:
    (folder / "r.toml").write_text('[[rule]]\nmatch = "*"\nscheme = "int8-g32-sym"', encoding="utf-8")
    return recipe.load(_marked(folder / "r.toml")).name


def _config(folder: Path) -> Any:
    (folder / "config.json").write_text('{"a": 1}', encoding="utf-8")
    return read_json(_marked(folder / "config.json"))


def _checkpoint(folder: Path) -> Any:
    source = tiny_llama(folder / "tiny")
    plain = read_tokenizer(source, {})
    marked = [_marked(path) for path in (*source.glob("tokenizer*.json"), *source.glob("*.jinja"))]
    return bool(marked), read_tokenizer(source, {}) == plain


def _manifest(folder: Path) -> Any:
    path = write_bundle(folder / "demo.dsedge", ["x"]).path
    return read_manifest(_marked(path / "manifest.json")).name


def _template(folder: Path) -> Any:
    return with_template(write_bundle(folder / "demo.dsedge", ["x"]), "\ufeffhello").read_text(TEMPLATE)


def _received(folder: Path) -> Any:
    received.path().parent.mkdir(parents=True)
    received.path().write_text('{"m": {"f": "1"}}', encoding="utf-8-sig")
    return received.recorded("m")


READERS: list[tuple[Callable[[Path], Any], Any]] = [
    (_tools, "weather"),
    (_catalogue, 0),
    (_recipe, "r"),
    (_config, {"a": 1}),
    (_checkpoint, (True, True)),
    (_manifest, "scripted"),
    (_template, "hello"),
    (_received, {"f": "1"}),
]


@pytest.mark.parametrize(("reader", "found"), READERS, ids=lambda item: getattr(item, "__name__", ""))
def test_n9_every_reader_takes_a_marked_file(
    reader: Callable[[Path], Any], found: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSEDGE_HOME", str(tmp_path / "home"))
    assert reader(tmp_path) == found


def test_n9_a_mark_at_the_start_of_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(codecs.BOM_UTF8 + b"hi\n"), encoding="utf-8"))
    assert read_prompt(None, raw=True) == "hi\n"


def test_n9_names_of_any_bytes_in_what_the_system_says(tmp_path: Path) -> None:
    """A control group is a folder, and its name need not be UTF-8; its limit counts all the same."""
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_bytes(b"0::/caf\xe9\xff\n")
    (group / "cpu.max").write_text("100000 100000\n")
    assert linux_cores(tmp_path, range(8)) == 1
    assert memory.peak_memory() is None or memory.peak_memory() > 0


def test_n9_no_other_module_decodes_by_a_rule_of_its_own() -> None:
    """Only edge.texts calls `json.loads`, `tomllib` and `Path.read_text`; three modules read JSON inside a format."""
    formats = {"edge/texts.py", "edge/safetensors.py", "edge/tokenizer.py", "exporters/checkpoint/added_tokens.py"}
    found = []
    for path in [path for package in ("edge", "exporters", "runtimes") for path in (ROOT / package).rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            keywords = [ast.unparse(word) for word in node.keywords]
            of_path = isinstance(node.func, ast.Attribute) and node.func.attr == "read_text" and not node.args
            of_library = ast.unparse(node.func) in ("json.load", "json.loads", "tomllib.load", "tomllib.loads")
            of_library &= not ast.unparse(node).startswith("json.loads(json.dumps(")  # a copy, not a text from outside
            if of_library or (of_path and keywords != ["encoding='latin-1'"]):  # in which HTTP's headers are kept
                found.append(path.relative_to(ROOT).as_posix())
    assert set(found) - formats == set()


def test_n9_a_word_of_the_command_line_is_utf_8_whatever_the_locale() -> None:
    assert texts.decode_word("plain") == "plain"
    if sys.platform != "win32":
        assert texts.decode_word("日本") == "日本"
        half = b"ab\xff".decode("utf-8", "surrogateescape")
        assert texts.decode_word(half) == half
    assert json.loads('"\\ud800"') == "\ud800"
