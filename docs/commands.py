"""Writes docs/commands.md from the commands themselves; with --check, fails where the page is out of date.

python docs/commands.py [--check]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from edge import cli

PAGE = Path(__file__).with_name("commands.md")
INTRODUCTION = """\
# Commands

<!-- Written by docs/commands.py from the commands themselves; do not edit. -->

`dsedge COMMAND --help` says the same. The answer goes to stdout, everything else to stderr. Words in capitals are to be
replaced. `--debug`, anywhere on the line, shows a traceback of an error, and `dsedge --version` the version.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | our fault: a bug, or numbers that are not finite |
| 2 | something that you can mend: a wrong option, a missing or damaged file, no space left |
| 3 | an export missed what `--gate` asks for; its report is kept, the bundle is not |
| 130 | stopped by Ctrl-C |
| 141 | whoever read the output went away |
| 143 | stopped by SIGTERM (129: by SIGHUP); nothing half done is left |

| variable | meaning |
|---|---|
| `DSEDGE_HOME` | the folder of the local store, instead of the user's data folder |
| `DSEDGE_CACHE` | the folder of downloads, instead of the user's cache folder |
| `DSEDGE_CATALOG` | further catalogue files, separated as in PATH ([the catalogue](catalog.md)) |
| `HTTPS_PROXY`, `HTTP_PROXY`, `NO_PROXY` | proxies for downloads; this machine itself is never reached through one |
| `PIP_INDEX_URL`, `HF_ENDPOINT`, `HF_TOKEN` | mirrors and credentials, read by pip and by the hub's client |
| `NO_COLOR` | no colours, and reasoning not dimmed |
"""


def page() -> str:
    """The whole page, in Markdown."""
    group: Any = typer.main.get_command(cli._build([]))
    sections = [INTRODUCTION]
    for name in cli.COMMANDS:
        sections.append("\n".join(_command(name, group.commands[name])))
    return "\n".join(sections)


def _command(name: str, command: Any) -> Iterator[str]:
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    options = [param for param in command.params if param.param_type_name == "option" and "--help" not in param.opts]
    usage = [param.metavar if param.required else f"[{param.metavar}]" for param in arguments]
    yield f"## dsedge {name}\n"
    yield f"    dsedge {' '.join([name, *(['[OPTIONS]'] if options else []), *usage])}\n"
    yield _unwrapped(command.help) + "\n"
    for title, params in (("argument", arguments), ("option", options)):
        if params:
            yield f"| {title} | meaning |\n|---|---|"
            yield from (f"| `{_cell(_spelling(param))}` | {_cell(_meaning(param))} |" for param in params)
            yield ""


def _spelling(param: Any) -> str:
    """`MODEL`, `-o, --out OUT.dsedge` or `--raw`."""
    if param.param_type_name == "argument":
        return str(param.metavar)
    names = ", ".join([*param.opts, *param.secondary_opts])
    return names if param.is_flag else f"{names} {param.metavar}"


def _meaning(param: Any) -> str:
    told = "[default:" in param.help or param.default is None or param.default is False
    return str(param.help) if told else f"{param.help} [default: {param.default}]"


def _unwrapped(text: str) -> str:
    """Docstrings are wrapped for the source; paragraphs stay."""
    paragraphs = "\n".join(line.strip() for line in text.splitlines()).split("\n\n")
    return "\n\n".join(paragraph.strip() for paragraph in paragraphs)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main() -> int:
    text = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8", newline="\n")
        return 0
    if not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text:
        print(f"{PAGE.name} is out of date: run `python docs/commands.py`", file=sys.stderr)
        return 1
    print("docs/commands.md: as the commands are")
    return 0


if __name__ == "__main__":
    sys.exit(main())
