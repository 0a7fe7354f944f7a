"""Files for keys and values that memory may have no room for: without a name, gone with the last map of them."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from typing import IO

from edge.errors import OptionError, StorageError
from edge.kv import Storage
from edge.paths import cache_folder

# Windows cannot map a file that has no name.
STORAGE: tuple[Storage, ...] = ("memory",) if sys.platform == "win32" else ("memory", "file")


def unnamed_file() -> IO[bytes]:
    """An empty file in the user's cache, and not in a folder that may itself lie in memory. Raises StorageError."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryFile(dir=folder, buffering=0)
    except OSError as error:
        raise StorageError(f"{folder}: keys and values cannot be kept there: {error.strerror}") from error


def take_space(file: IO[bytes], size: int) -> None:
    """Let the file have `size` bytes of the disk's: a page that it has no room for would end the process.

    Raises OptionError, with both numbers, where there are not so many.
    """
    folder = cache_folder()
    free = shutil.disk_usage(folder).free
    try:
        if size > free:
            raise OSError
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            os.ftruncate(file.fileno(), size)
    except OSError as error:
        raise OptionError(
            f"keys and values take {size / 1e6:.0f} MB in {folder}, and {free / 1e6:.0f} MB are free there; choose a "
            "smaller context, or set DSEDGE_CACHE to another disk"
        ) from error
