"""No text file is read or written in whatever code page the system happens to have."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import edge

ROOT = Path(edge.__file__).parents[1]


def unsaid(path: Path) -> list[str]:
    """Calls that open text without saying how it is encoded."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call) or {item.arg for item in node.keywords} & {"encoding", None}:
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        owner = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
        if name in ("read_text", "write_text"):
            bad = len(node.args) < (2 if name == "write_text" else 1)
        elif name in ("open", "fdopen") and owner in ("", "os") and (name, owner) != ("open", "os"):
            mode = next((ast.unparse(item) for item in node.args[1:2]), "")
            mode = next((ast.unparse(item.value) for item in node.keywords if item.arg == "mode"), mode)
            bad = "b" not in mode
        else:
            bad = any(item.arg == "text" for item in node.keywords) and name in ("run", "Popen", "check_output")
        if bad:
            found.append(f"{path.name}:{node.lineno}")
    return found


@pytest.mark.parametrize("package", ["edge", "exporters", "runtimes"])
def test_text_files_say_their_encoding(package: str) -> None:
    assert [place for path in sorted((ROOT / package).rglob("*.py")) for place in unsaid(path)] == []


def test_the_search_finds_what_it_looks_for(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text(
        "p.read_text()\nopen(p)\nopen(p, 'rb')\nos.fdopen(h, 'w')\nos.open(p, f)\nrun(c, text=True)\n", encoding="utf-8"
    )
    assert unsaid(path) == ["x.py:1", "x.py:2", "x.py:4", "x.py:6"]
