"""`dsedge list`, `pull` and `rm`: the models of the local store and of the catalogue."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

import edge
from edge import store
from edge.catalog import find, load_catalog
from edge.commands import terminal
from edge.download import fetch

JsonOption = Annotated[bool, typer.Option("--json", help="One line of JSON instead of a table.")]


def pull(name: str) -> Path:
    """Download a catalogued model and export it into the store, with progress on stderr; the bundle's folder.

    Raises NotFoundError for a name that the catalogue lacks, and what fetching and exporting raise.
    """
    model = find(name)
    target = store.place(name)
    with terminal.progress() as progress:
        source = fetch(model, progress)
        edge.export(source, target, name=name, progress=progress)
    terminal.note(f"{name}: {model.title}, {model.license} license, exported to {target}")
    return target


@dataclass(frozen=True, slots=True, kw_only=True)
class List:
    """List the models of the local store and of the catalogue."""

    json: JsonOption = False

    def execute(self) -> int:
        here = store.names()
        models = load_catalog().models
        rows = [
            {
                "name": name,
                "in_store": name in here,
                "bytes": _folder_size(store.bundle_path(name)) if name in here else None,
                "license": models[name].license if name in models else None,
            }
            for name in sorted({*here, *models})
        ]
        if self.json:
            terminal.print_json({"store": str(store.folder()), "models": rows})
            return 0
        cells = [(row["name"], _state(row["bytes"]), row["license"] or "") for row in rows]
        terminal.print_table(("name", "store", "license"), cells, sys.stdout)
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """Download a model of the catalogue and export it into the local store."""

    name: Annotated[str, typer.Argument(metavar="NAME", help="A name that `dsedge list` shows.")]

    def execute(self) -> int:
        if self.name in store.names():
            terminal.note(f"{self.name} is in the store already: {store.bundle_path(self.name)}")
            return 0
        pull(self.name)
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Remove:
    """Remove a model from the local store."""

    name: Annotated[str, typer.Argument(metavar="NAME", help="A name that `dsedge list` shows.")]

    def execute(self) -> int:
        store.remove(self.name)
        terminal.note(f"removed {self.name}")
        return 0


def _folder_size(path: Path) -> int:
    return sum(item.stat().st_size for item in path.rglob("*") if item.is_file())


def _state(size: object) -> str:
    return terminal.megabytes(size) if isinstance(size, int) else "not pulled"
