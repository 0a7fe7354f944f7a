"""The models that can be had by name: those in the local store, and those of the catalogue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge import store
from edge.catalog import load_catalog


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model by name.

    path                            its bundle in the store; None where it is not there
    title, family, variant, license  as the catalogue has them; None where the model is in the store alone
    download_bytes                  what pulling it takes, about
    pinned                          whether the catalogue has the sum of what must arrive
    """

    name: str
    path: Path | None
    title: str | None = None
    family: str | None = None
    variant: str | None = None
    license: str | None = None
    download_bytes: int | None = None
    pinned: bool | None = None


def list_models(catalog: str | Path | None = None) -> list[ModelEntry]:
    """Every model of the store and of the catalogue, by name; `catalog` is a further catalogue file.

    Raises StorageError for a store that cannot be read, and NotFoundError or OptionError for a catalogue.
    """
    here = set(store.names())
    models = load_catalog(None if catalog is None else Path(catalog)).models
    entries = []
    for name in sorted({*here, *models}):
        path = store.bundle_path(name) if name in here else None
        model = models.get(name)
        if model is None:
            entries.append(ModelEntry(name, path))
        else:
            entries.append(
                ModelEntry(
                    name, path, model.title, model.family, model.variant, model.license, model.size, bool(model.sha256)
                )
            )
    return entries


def pull(name: str, *, catalog: str | Path | None = None, progress: Callable[[str, float], None] | None = None) -> Path:
    """Get a model into the store, unless it is there already; the folder of its bundle.

    `name` is of the catalogue (`catalog` is a further file of it), or a repository of the Hugging Face hub, org/repo or
    org/repo/FILE.gguf. `progress` gets a stage and the share of it that is done. Raises NotFoundError for what neither
    has, StorageError, and what fetching and `edge.export` raise.
    """
    from edge.pulling import pull as run

    def report(stage: str, done: float, _: Any = None, /) -> None:
        if progress is not None:
            progress(stage, done)

    return run(name, report, catalog=None if catalog is None else Path(catalog)).path
