"""Getting a model into the local store: fetched, exported (or taken as the bundle that it is), and then accepted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import edge
from edge import received, store
from edge.bundle import MANIFEST, read_manifest
from edge.catalog import Hub, Model, find, load_catalog
from edge.download import fetch
from edge.errors import BundleError, NotFoundError
from edge.exporting import QUICK, copy_bundle
from edge.naming import canonical, is_repository, repository_name, split_repository
from edge.progress import Progress
from edge.sources import hub

Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Pulled:
    """A model of the store: its folder, and whether it has just come there."""

    path: Path
    new: bool


def pull(name: str, progress: Progress, *, catalog: Path | None = None, note: Note = lambda line: None) -> Pulled:
    """Get a model into the store. One that is there already is left as it is.

    `name` is of the catalogue (in any case, or a common name of it) or a repository of the hub, org/repo or
    org/repo/FILE.gguf. `note` gets what a person should know. Raises NotFoundError for what neither has, and what
    fetching and exporting raise; what arrives is recorded only after its export.
    """
    stored = canonical(name, store.names(), load_catalog(catalog))
    if stored in store.names() and is_current(stored):
        note(f"{stored} is in the store already: {store.bundle_path(stored)}")
        return Pulled(store.bundle_path(stored), new=False)
    model = _look_up(name, catalog, progress)
    target = store.place(model.name)
    if not model.sha256:
        seen = "checked against the first pull" if received.recorded(model.name) else "so this pull is taken on trust"
        note(f"{model.name}: not pinned in the catalogue, {seen}; the sums are recorded in {received.path()}")
    found = fetch(model, progress)
    if model.form == "bundle":
        copy_bundle(found.path, target, progress)
    else:
        edge.export(found.path, target, recipe=model.variant or None, name=model.name, effort=QUICK, progress=progress)
    found.accept(model)
    terms = f" ({model.terms})" if model.terms else ""
    note(f"{model.name}: {model.title}, {model.license} license{terms}, now in {target}")
    return Pulled(target, new=True)


def is_current(name: str) -> bool:
    """Whether a model of the store has a manifest that this version reads; one of an older format is pulled anew."""
    try:
        read_manifest(store.bundle_path(name) / MANIFEST)
    except BundleError:
        return False
    return True


def _look_up(name: str, catalog: Path | None, progress: Progress) -> Model:
    known = canonical(name, (), load_catalog(catalog))
    if is_repository(name) and known == repository_name(name):
        progress(f"look at {name}", 0.0)
        return _of_repository(name)
    return find(name, catalog)


def _of_repository(text: str) -> Model:
    """A repository of the hub as a catalogue would describe it. Raises NotFoundError if it holds nothing to export."""
    repo, file = split_repository(text)
    found = hub.look(repo)
    if file is None and not any(name.endswith(".safetensors") for name in found.sizes):
        files = sorted(name for name in found.sizes if name.endswith(".gguf") and "/" not in name)
        if not files:
            raise NotFoundError(f"{repo}: holds neither safetensors nor GGUF files, which an export reads")
        if len(files) > 1:
            raise NotFoundError(
                f"{repo}: holds several GGUF files; name one: {', '.join(f'{repo}/{f}' for f in files)}"
            )
        file = files[0]
    if file is not None and file not in found.sizes:
        raise NotFoundError(f"{repo}: holds no {file}")
    size = found.sizes[file] if file else hub.wanted_bytes(found)
    source = Hub(repo, found.commit, file)
    return Model(
        store.check_name(repository_name(text)), repo, "", "", found.license, size, (source,),
        form="file" if file else "folder", file=file or "",
    )  # fmt: skip
