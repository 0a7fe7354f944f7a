"""The pages of docs/ say what the program does: names, keys and examples are compared with it."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import edge
from edge import bundle as bundles
from edge import catalog, payload, seal
from edge.cli import COMMANDS, _build
from edge.contents import Artefact, Origin
from edge.quality import ParityReport, QualityReport
from exporters.quant import recipe as recipes

ROOT = Path(edge.__file__).parents[1]
DOCS = ROOT / "docs"


def text(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def blocks(page: str, language: str = "") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_commands", DOCS / "commands.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_commands_is_up_to_date(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = generator()
    assert text("commands.md") == page.page(), "run `python docs/commands.py`"
    for name in COMMANDS:
        assert f"\n## dsedge {name}\n" in text("commands.md")
    monkeypatch.setattr(page, "INTRODUCTION", "changed")
    monkeypatch.setattr("sys.argv", ["commands.py", "--check"])
    assert page.main() == 1
    assert "out of date" in capsys.readouterr().err


def examples() -> list[str]:
    pages = [(ROOT / "README.md").read_text(encoding="utf-8"), text("tutorial.md")]
    lines = [line for page in pages for block in blocks(page) for line in block.splitlines()]
    return [line.split("   ")[0] for line in lines if re.match(r"dsedge |.*\| dsedge ", line)]


@pytest.mark.parametrize("line", examples())
def test_examples_of_commands_parse(line: str) -> None:
    line = line.partition(" > ")[0].rpartition("| ")[2]
    for command in re.split(r", (?=dsedge )", line):
        words = shlex.split(command)[1:]
        parsed: Any = _build(words)(words, prog_name="dsedge", standalone_mode=False)
        assert type(parsed).__name__ == COMMANDS[words[0]][1]


def test_the_example_of_a_recipe_is_one(tmp_path: Path) -> None:
    (example,) = blocks(text("recipes.md"), "toml")
    path = tmp_path / "mine.toml"
    path.write_text(example, encoding="utf-8")
    found = recipes.load(path)
    assert [rule.scheme for rule in found.rules] == ["int8-g32-sym", "float16", "int8-g32-sym", "int4-g32-zp"]
    assert found.activation_kl == 0.002


def test_the_table_of_recipes_is_true() -> None:
    rows = re.findall(r"^\| `(\S+)` \| (\S+) \| (\S+) \| (\S+) \| (yes|no) \|$", text("recipes.md"), re.MULTILINE)
    assert sorted(row[0] for row in rows) == recipes.named()
    for name, head, attention, mlp, carries in rows:
        for weight, scheme in (("head", head), ("layers.7.attn.v", attention), ("layers.0.mlp.up", mlp)):
            rule = next(
                rule for rule in recipes.load(name).rules if any(recipes.fnmatchcase(weight, p) for p in rule.match)
            )
            assert (rule.scheme, rule.carry) == (scheme, carries == "yes")


def test_the_table_of_schemes_is_true() -> None:
    page = text("recipes.md")
    for name, bits in re.findall(r"^\| `(int\S+)` \| [^|]+ \| ([\d.]+) \|$", page, re.MULTILINE):
        scheme = payload.parse_scheme(name.replace("gN", "g32"))
        assert scheme
        assert 8 * scheme.size(64, 1024) / (64 * 1024) == float(bits)
    assert page.count("| `int") == 4 + 2  # and two recipes, int8 and int4-g32-sym


def test_the_bundle_page_names_every_key_and_part() -> None:
    page = text("bundle-format.md")
    keys = re.findall(r"^\| `(\w+)` \|", page.partition("## manifest.json")[2].partition("\n## ")[0], re.MULTILINE)
    assert keys == ["format", seal.KEY, *(field.name for field in dataclasses.fields(bundles.Manifest))]
    for info in (
        bundles.TokenizerInfo,
        bundles.GraphInfo,
        bundles.FileInfo,
        Artefact,
        Origin,
        QualityReport,
        ParityReport,
    ):
        assert [f.name for f in dataclasses.fields(info) if f"`{f.name}`" not in page] == []
    for name in (bundles.MANIFEST, bundles.WEIGHTS, bundles.TOKENIZER, bundles.TEMPLATE):
        assert f"`{name}`" in page
    assert f"version {bundles.FORMAT}\n" in page
    scheme = payload.Scheme(4, 32, "zp")
    parts = {*scheme.parts(8, 64), *payload.Scheme(4, 32, "affine").parts(8, 64)}
    assert set(re.findall(r"^\| `(\w+)` \| [UF]\d", page, re.MULTILINE)) == parts


def test_the_example_of_a_catalogue_is_one(tmp_path: Path) -> None:
    (example,) = blocks(text("catalog.md"), "toml")
    path = tmp_path / "catalog.toml"
    path.write_text(example, encoding="utf-8")
    model = catalog.find("tale-sub1b", path)
    assert [type(source) for source in model.sources] == [catalog.Url, catalog.Local]
    table = text("catalog.md").partition("| kind of source |")[2].partition("\n\n")[0]
    kinds = re.findall(r"^\| `(\w+)` \| .* \| ([a-z, ]+) \|$", table, re.MULTILINE)
    assert {kind: tuple(forms.split(", ")) for kind, forms in kinds} == {
        kind: source.forms for kind, source in catalog.SOURCES.items()
    }


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*DOCS.glob("*.md"), ROOT / "README.md"]:
        prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for link in re.findall(r"\]\(([^)#:]+)\)", prose):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_the_api_reference_has_every_public_name_once() -> None:
    """`make check` builds it, with warnings as errors."""
    named = re.findall(r"^::: edge\.(\w+)$", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(named) == sorted(edge.__all__)


def test_the_files_and_tables_of_the_architecture_are_there() -> None:
    page = text("architecture.md")
    for path in re.findall(r"`((?:edge|exporters|runtimes)/[\w/.]*)`", page):
        assert "NAME" in path or (ROOT / path).exists(), path
    for path in re.findall(r"`(src/[\w/.]+)`", page):
        assert (ROOT / "runtimes" / "native" / path).exists(), path
    for table, module in TABLES.items():
        assert table in page
        assert isinstance(getattr(importlib.import_module(module), table), dict), table


TABLES = {
    "ATTENTIONS": "edge.layers", "MLPS": "edge.layers", "BRANCHES": "edge.branches", "OPS": "edge.ops",
    "EVALUATORS": "exporters.reference", "HANDLERS": "exporters.emit.onnx", "TRANSLATORS": "runtimes.native.builder",
    "METHODS": "exporters.quant.method", "TARGETS": "exporters.targets", "RUNTIMES": "edge.runtime",
    "HUGGING_FACE": "exporters.architectures", "GGUF": "exporters.architectures",
}  # fmt: skip
