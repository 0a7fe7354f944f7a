"""One process at a time: a lock on an open file, given back by the system when the process ends, however it ends."""

from __future__ import annotations

import sys
from typing import IO


def try_lock(file: IO[bytes]) -> bool:
    """Take an exclusive lock that lasts until the file is closed; False if another process holds it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
