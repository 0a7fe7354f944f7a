"""An output folder that appears whole or not at all: written under a temporary name, synced, renamed last."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import sys
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import IO

from edge.errors import OptionError, StorageError
from edge.locking import holding, try_lock
from exporters.payload_writer import storage_error

_LOCK = ".lock"
_ASIDE = ".old"
_BLOCK = 4096  # the least that a file system can have lacked
_AT_FDCWD = -100  # linux/fcntl.h
_RENAME_EXCHANGE = 2  # linux/fs.h
_RENAME_SWAP = 2  # macOS sys/stdio.h


class BundleFolder:
    """Context manager: fill `path`, then `commit`. Without a commit nothing stays, and an older bundle is untouched.

    What a killed export left behind is removed by the next one to the same place; a running one holds a lock on a file
    in its folder. Where a folder lacks that lock (before it is taken, and while the folder goes to its place), a second
    lock, `.NAME.lock` beside the target, keeps other exports out. Its file is there only meanwhile, or until the next
    export if one was killed.
    """

    def __init__(self, target: Path) -> None:
        """Raises OptionError for a target that is no bundle's place, StorageError when its parent cannot be written."""
        self.target = Path(os.path.abspath(target))
        if self.target.suffix != ".dsedge":
            raise OptionError(f"{target}: a bundle's name ends in .dsedge")
        if self.target.is_symlink():
            raise OptionError(f"{target}: is a link; give the place that it points to, or remove it")
        if self.target.exists() and not (self.target / "manifest.json").is_file() and not _empty(self.target):
            raise OptionError(f"{target}: exists and is no bundle; choose another place or remove it")

    def __enter__(self) -> BundleFolder:
        parent = self.target.parent
        if not parent.is_dir():
            raise StorageError(f"{parent}: no such folder; create it or choose another place for the bundle")
        prefix = f".{self.target.name}.partial-"
        try:
            with self._alone():
                for leftover in [path for path in parent.iterdir() if path.name.startswith(prefix)]:
                    if leftover.name.endswith(_ASIDE) and not self.target.exists():
                        os.rename(leftover, self.target)  # killed between the renames of `_exchange`
                    else:
                        _remove_abandoned(leftover)
                self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
                self._lock: IO[bytes] = open(self.path / _LOCK, "wb")
                try_lock(self._lock)
        except OSError as error:
            raise storage_error(error, parent, _BLOCK) from error
        return self

    def commit(self) -> Path:
        """Sync everything and put it in the target's place; returns the target."""
        needed = _size(self.path)
        try:
            os.chmod(self.path, 0o755)  # mkdtemp makes it private
            for folder, _, files in os.walk(self.path):
                for name in files:
                    _sync(Path(folder) / name)
                _sync(Path(folder))
            with self._alone():
                self._lock.close()
                (self.path / _LOCK).unlink()
                if self.target.exists():
                    _exchange(self.path, self.target)
                    shutil.rmtree(self.path)
                else:
                    os.rename(self.path, self.target)
            _sync(self.target.parent)
        except OSError as error:
            raise storage_error(error, self.target, needed) from error
        return self.target

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raises StorageError in place of an OSError, which the file system gave while the folder was filled."""
        needed = _size(self.path)
        self._lock.close()
        shutil.rmtree(self.path, ignore_errors=True)  # what cannot be removed, the next export removes
        if isinstance(error, OSError):
            raise storage_error(error, self.target, needed) from error

    def _alone(self) -> AbstractContextManager[None]:
        """No other export to the same place looks for leftovers or publishes meanwhile."""
        return holding(self.target.with_name(f".{self.target.name}{_LOCK}"))


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _remove_abandoned(folder: Path) -> None:
    """Remove a partial folder unless the export that writes it still runs."""
    lock = folder / _LOCK
    if lock.is_file():
        with open(lock, "wb") as file:
            if not try_lock(file):
                return
    with contextlib.suppress(FileNotFoundError):  # the export that made it has just failed and removes it itself
        shutil.rmtree(folder)


def _sync(path: Path) -> None:
    if sys.platform == "win32" and path.is_dir():
        return  # a folder cannot be opened for syncing there
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() or sys.platform != "win32" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _exchange(new: Path, old: Path) -> None:
    """Swap two folders in one step where the system can, so that a kill in between leaves one whole bundle."""
    if sys.platform in ("linux", "darwin"):
        libc = ctypes.CDLL(None, use_errno=True)
        a, b = os.fsencode(new), os.fsencode(old)
        if sys.platform == "linux":
            failed = libc.renameat2(_AT_FDCWD, a, _AT_FDCWD, b, _RENAME_EXCHANGE)
        else:
            failed = libc.renamex_np(a, b, _RENAME_SWAP)
        if not failed:
            return
    aside = new.with_name(f"{new.name}{_ASIDE}")
    os.rename(old, aside)
    try:
        os.rename(new, old)
    except OSError:
        os.rename(aside, old)
        raise
    os.rename(aside, new)
