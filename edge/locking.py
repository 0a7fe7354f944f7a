"""One process at a time: a lock on an open file, given back by the system when the process ends, however it ends."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO


def try_lock(file: IO[bytes]) -> bool:
    """Take an exclusive lock that lasts until the file is closed; False if another process holds it.

    Raises OSError where files cannot be locked: some network file systems have no locks.
    """
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # the latter on Windows
        return False
    return True


@contextmanager
def holding(path: Path) -> Iterator[None]:
    """Hold an exclusive lock by the name of `path`, after waiting for whoever has it.

    The file is made for the purpose and removed afterwards (on Windows, which removes no open file, it stays). A
    killed process leaves it, and a file that nobody has open locks nothing. Raises OSError if it cannot be had.
    """
    with _locked(path):
        try:
            yield
        finally:
            if sys.platform != "win32":
                path.unlink()


def _locked(path: Path) -> IO[bytes]:
    """The file `path`, opened and locked. Not one that the last holder has removed: its lock would exclude nobody."""
    while True:
        with ExitStack() as stack:
            file = stack.enter_context(open(path, "ab"))
            _wait_for_lock(file)
            if _is_at(path, file):
                stack.pop_all()
                return file


def _is_at(path: Path, file: IO[bytes]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _wait_for_lock(file: IO[bytes]) -> None:
    if sys.platform == "win32":
        import msvcrt

        done = False
        while not done:
            try:
                msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
                done = True
            except OSError as error:  # msvcrt.locking raises after ten seconds of waiting: wait again
                if error.errno != errno.EDEADLK:
                    raise
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)
