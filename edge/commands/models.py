"""`dsedge list`, `pull`, `import` and `rm`: the models of the local store and of the catalogue."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

import edge
from edge import pulling, store
from edge.bundle import MANIFEST, open_bundle
from edge.catalog import Model, load_catalog
from edge.commands import terminal
from edge.commands.complete import catalog_names, store_names
from edge.commands.quality import note_quality
from edge.errors import NotFoundError, OptionError
from edge.exporting import QUICK, copy_bundle
from edge.paths import expanded

JsonOption = Annotated[bool, typer.Option("--json", help="One line of JSON instead of a table.")]
CatalogOption = Annotated[
    Path | None,
    typer.Option(
        "--catalog", metavar="FILE", help="A catalogue file to read besides those of DSEDGE_CATALOG.", parser=expanded
    ),
]


def pull(name: str, catalog: Path | None = None) -> Path:
    """Get a model into the store, with progress and notes on stderr; the bundle's folder. Raises as `edge.pulling`."""
    with terminal.progress() as progress:
        found = pulling.pull(name, progress, catalog=catalog, note=terminal.note)
    if found.new:
        note_quality(open_bundle(found.path).manifest.quality)
    return found.path


@dataclass(frozen=True, slots=True, kw_only=True)
class List:
    """List the models of the local store and of the catalogue.

    The size is that of the bundle in the store, or of the download that a pull takes. The variant is the recipe that a
    model is exported with: sub1b below a billion parameters, 7b above.
    """

    catalog: CatalogOption = None
    json: JsonOption = False

    def execute(self) -> int:
        here = store.names()
        models = load_catalog(self.catalog).models
        rows = [_row(name, models.get(name), name in here) for name in sorted({*here, *models})]
        if self.json:
            terminal.print_json({"store": str(store.folder()), "models": rows})
            return 0
        cells = [
            (
                row["name"],
                "yes" if row["in_store"] else "no",
                _size(row),
                *(row[key] or "" for key in ("family", "variant", "license")),
            )
            for row in rows
        ]
        terminal.print_table(("name", "store", "size", "family", "variant", "license"), cells, sys.stdout)
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """Get a model of the catalogue or of the Hugging Face hub.

    What breaks off is gone on with by the next pull. Downloads go through the proxies of HTTPS_PROXY and NO_PROXY, the
    package index of pip's own settings (PIP_INDEX_URL) and the hub of HF_ENDPOINT.
    """

    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A name that `dsedge list` shows, or a repository of the hub, org/repo or org/repo/FILE.gguf.",
            autocompletion=catalog_names,
        ),
    ]
    catalog: CatalogOption = None

    def execute(self) -> int:
        pull(self.name, self.catalog)
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """Take a bundle or a checkpoint into the local store.

    A bundle is copied and every hash recomputed. A checkpoint is exported: a model folder, a .safetensors or a .gguf
    file.
    """

    path: Annotated[str, typer.Argument(metavar="PATH", help="A bundle's folder, or a checkpoint.")]
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="The name in the store. [default: as PATH is called]")
    ] = None

    def execute(self) -> int:
        path = expanded(self.path)
        if not path.exists():
            raise NotFoundError(f"{path}: no bundle and no checkpoint there")
        name = store.check_name(self.name or _plain_name(path))
        if name in store.names():
            raise OptionError(f"the store has a model {name!r}; choose another --name, or `dsedge rm {name}` first")
        target = store.place(name)
        with terminal.progress() as progress:
            if (path / MANIFEST).is_file():
                copy_bundle(path, target, progress)
            else:
                edge.export(path, target, name=name, effort=QUICK, progress=progress)
        note_quality(open_bundle(target).manifest.quality)
        terminal.note(f"{name}: now in {target}")
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Remove:
    """Remove a model from the local store."""

    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A name that `dsedge list` shows.", autocompletion=store_names)
    ]

    def execute(self) -> int:
        terminal.note(f"removed {store.remove(self.name)}")
        return 0


def _plain_name(path: Path) -> str:
    """What a path is called, without the suffixes of bundles and checkpoints."""
    name = os.path.basename(os.path.abspath(path))
    for suffix in (store.SUFFIX, ".gguf", ".safetensors"):
        name = name.removesuffix(suffix)
    return name


def _row(name: str, model: Model | None, stored: bool) -> dict[str, str | int | bool | list[str] | None]:
    return {
        "name": name,
        "in_store": stored,
        "bytes": _folder_size(store.bundle_path(name)) if stored else None,
        "download_bytes": model.size if model else None,
        "family": model.family if model else None,
        "variant": model.variant if model else None,
        "license": model.license if model else None,
        "pinned": bool(model.sha256) if model else None,
        "aliases": list(model.aliases) if model else [],
    }


def _folder_size(path: Path) -> int:
    total = 0
    for item in path.rglob("*"):
        try:
            total += item.stat().st_size if item.is_file() else 0
        except FileNotFoundError:
            continue  # another process is just removing or replacing the bundle
    return total


def _size(row: dict[str, str | int | bool | list[str] | None]) -> str:
    """What the bundle takes in the store, or what a pull takes."""
    from edge.commands.bars import size

    count = row["bytes"] if row["in_store"] else row["download_bytes"]
    assert isinstance(count, int)
    return size(count)
