"""An output folder that appears whole or not at all: written under a temporary name, synced, renamed last."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import IO

from edge.bundle import MANIFEST
from edge.bundle_files import foreign
from edge.errors import EdgeError, OptionError, StorageError
from edge.files import make_writable, remove_tree
from edge.locking import holding, try_lock
from exporters.payload_writer import storage_error

_LOCK = "lock"
_NEW = "bundle"
_ASIDE = "old"
_LEAST_BYTES = 4096  # what is named as missing where the real need is not known
_AT_FDCWD = -100  # linux/fcntl.h
_RENAME_EXCHANGE = 2  # linux/fs.h
_RENAME_SWAP = 2  # macOS sys/stdio.h


class BundleFolder:
    """Context manager: fill `path`, then `commit`. Without a commit nothing stays, and an older bundle is untouched.

    The bundle grows in a hidden work folder beside the destination, which also holds a lock. What a killed export left
    behind is removed by the next one to the same place; the work folder of a running one is locked. Before that lock is
    taken, and while the bundle goes to its place, a second lock, `.NAME.lock` beside the destination, keeps other
    exports out. Its file is there only meanwhile, or until the next export if one was killed.
    """

    def __init__(self, destination: Path) -> None:
        """Raises OptionError for a name that is no bundle's, StorageError when the parent folder cannot be written."""
        self.destination = Path(os.path.abspath(destination))
        if self.destination.suffix != ".dsedge":
            raise OptionError(f"{destination}: a bundle's name ends in .dsedge")
        self._check_target()

    def __enter__(self) -> BundleFolder:
        parent = self.destination.parent
        if not parent.is_dir():
            raise StorageError(f"{parent}: no such folder; create it or choose another place for the bundle")
        prefix = f".{self.destination.name}.partial-"
        try:
            with self._alone():
                for leftover in [path for path in parent.iterdir() if path.name.startswith(prefix)]:
                    _remove_abandoned(leftover, self.destination)
                self._work = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
                self._lock: IO[bytes] = open(self._work / _LOCK, "wb")
                try_lock(self._lock)
            self.path = self._work / _NEW
            self.path.mkdir()
        except OSError as error:
            raise storage_error(error, parent, _LEAST_BYTES) from error
        return self

    def commit(self) -> Path:
        """Sync everything and put it in the destination's place; returns the destination.

        Raises OptionError if the destination has meanwhile become something that is not replaced, and StorageError.
        """
        needed = _size(self.path)
        try:
            for folder, _, files in os.walk(self.path):
                for name in files:
                    _sync(Path(folder) / name)
                _sync(Path(folder))
            with self._alone():
                self._check_target()
                if self.destination.exists():
                    make_writable(self.destination)  # a protected folder can be neither moved nor removed
                    _exchange(self.path, self.destination)
                else:
                    os.rename(self.path, self.destination)
                self._remove_work()
            _sync(self.destination.parent)
        except OSError as error:
            raise storage_error(error, self.destination, needed) from error
        return self.destination

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raises StorageError in place of an OSError, which the file system gave while the folder was filled."""
        needed = _size(self.path)
        self._remove_work()
        if isinstance(error, OSError):
            raise storage_error(error, self.destination, needed) from error
        if isinstance(error, EdgeError):  # the message would name the temporary folder, which has been removed
            error.args = (str(error).replace(str(self.path), str(self.destination)), *error.args[1:])

    def _check_target(self) -> None:
        """Raise OptionError unless the destination is free, an empty folder, or a whole bundle and nothing else."""
        if self.destination.is_symlink():
            raise OptionError(f"{self.destination}: is a link; give the place that it points to, or remove it")
        if not self.destination.exists() or _empty(self.destination):
            return
        reason = foreign(self.destination, MANIFEST)
        if reason:
            raise OptionError(f"{self.destination}: {reason}; it stays: choose another place, or remove it yourself")

    def _remove_work(self) -> None:
        self._lock.close()
        with contextlib.suppress(OSError):  # what cannot be removed, the next export removes
            if self._work.exists():
                remove_tree(self._work)

    def _alone(self) -> AbstractContextManager[None]:
        """No other export to the same place looks for leftovers or publishes meanwhile."""
        return holding(self.destination.with_name(f".{self.destination.name}.lock"))


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _remove_abandoned(work: Path, destination: Path) -> None:
    """Remove a work folder unless the export that writes it still runs; what cannot be removed stays.

    If that export was killed between the renames of `_exchange`, the older bundle goes back to its place first.
    """
    lock = work / _LOCK
    if lock.is_file():
        with open(lock, "wb") as file:
            if not try_lock(file):
                return
    if (work / _ASIDE).is_dir() and not destination.exists():
        os.rename(work / _ASIDE, destination)
    with contextlib.suppress(OSError):  # another user's, or one that has just failed and removes it itself
        remove_tree(work)


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
    aside = new.with_name(_ASIDE)
    os.rename(old, aside)
    try:
        os.rename(new, old)
    except OSError:
        os.rename(aside, old)
        raise
