"""Fails when a module or a function has grown past what one idea needs: 300 lines and 40 lines, with a little slack."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

MODULE_LINES = 330
FUNCTION_LINES = 50


def complaints(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    lines = len(text.splitlines())
    found = [f"{path}: {lines} lines; a module has at most {MODULE_LINES}"] if lines > MODULE_LINES else []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES:
                found.append(f"{path}:{node.lineno}: {node.name} has {length} lines; at most {FUNCTION_LINES}")
    return found


if __name__ == "__main__":
    problems = [line for root in sys.argv[1:] for path in sorted(Path(root).rglob("*.py")) for line in complaints(path)]
    print("\n".join(problems) or "sizes: all modules and functions are within their limits")
    sys.exit(bool(problems))
