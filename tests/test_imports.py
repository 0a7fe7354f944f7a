"""The import rule of the packages, read from the sources and seen in fresh processes."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import edge

ROOT = Path(edge.__file__).parents[1]
OURS = {"edge", "exporters", "runtimes", "apps"}
# What each part of `edge` may import besides the standard library and `edge` itself.
DEVICE = {"numpy", "tokenizers", "jinja2"}
COMMAND_LINE = DEVICE | {"typer", "rich", "prompt_toolkit", "cryptography"}
# The places that open another package, always lazily.
DOORS = {"edge/runtime.py", "edge/exporting.py", "edge/artefacts.py"}
HEAVY = (
    "cryptography",
    "torch",
    "onnx",
    "onnxruntime",
    "coremltools",
    "transformers",
    "typer",
    "rich",
    "prompt_toolkit",
)


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imports(path: Path) -> Iterator[tuple[str, int, bool]]:
    """(top-level name, line, whether it is at module level) of every import that runs."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {id(node) for block in ast.walk(tree) if _is_typing_only(block) for node in ast.walk(block)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports here are absolute"
            names = [node.module or ""]
        else:
            continue
        yield from ((name.partition(".")[0], node.lineno, node in tree.body) for name in names)


def _is_typing_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def outside(path: Path) -> set[str]:
    return {name for name, _, _ in imports(path)} - set(sys.stdlib_module_names)


@pytest.mark.parametrize("path", sources("edge"), ids=lambda path: str(path.relative_to(ROOT)))
def test_edge_imports_only_what_ships_on_a_device(path: Path) -> None:
    name = path.relative_to(ROOT).as_posix()
    cli = name == "edge/cli.py" or name.startswith("edge/commands/")
    allowed = (COMMAND_LINE if cli else DEVICE) | {"edge"}
    if cli or name in DOORS:
        allowed |= {"exporters", "runtimes"}
    assert outside(path) <= allowed
    assert [line for top, line, at_module_level in imports(path) if top in OURS - {"edge"} and at_module_level] == []


def test_runtimes_and_exporters_do_not_import_each_other() -> None:
    assert [str(path) for path in sources("runtimes") if outside(path) & {"exporters", "apps"}] == []
    assert [str(path) for path in sources("exporters") if outside(path) & {"runtimes", "apps"}] == []


def modules_after(code: str) -> set[str]:
    """The top-level modules that a fresh process has loaded after running `code`."""
    program = f"import sys\n{code}\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL
    )
    return set(done.stdout.split())


def test_import_edge_loads_nothing_heavy() -> None:
    loaded = modules_after("import edge")
    assert "edge" in loaded
    assert loaded & {*HEAVY, "numpy", "tokenizers", "jinja2"} == set()


def test_a_pipeline_needs_no_exporter_and_no_command_line() -> None:
    assert modules_after("import edge; edge.load, edge.Pipeline") & {*HEAVY, "exporters"} == set()


def test_the_run_command_loads_no_terminal_library_and_no_backend() -> None:
    loaded = modules_after("import edge.cli; edge.cli._build(['run'])")
    assert "typer" in loaded
    assert loaded & (set(HEAVY) - {"typer"}) == set()


def test_every_public_name_exists() -> None:
    assert sorted(edge.__all__) == sorted(edge._EXPORTS)
    assert [name for name in edge.__all__ if getattr(edge, name) is None] == []
