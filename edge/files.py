"""Small files that are written in one step, and folders that are removed whatever their modes are."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import sys
from pathlib import Path

# The errors by which a file system refuses to take something: no room, no permission, no such place.
REFUSALS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)


def write_whole(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Write a text as UTF-8, synced: whoever reads the file finds the old text or the new one, never a part.

    `mode` is what the umask leaves of it. Raises OSError: the old file is as it was then, and nothing else is left.
    """
    partial = path.with_name(f".writing-{secrets.token_hex(8)}")
    handle = os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(handle)
        os.replace(partial, path)
    except BaseException:
        os.unlink(partial)
        raise


def remove_tree(folder: Path) -> None:
    """Remove a folder and all in it, also where folders (on Windows: files) are write-protected. Raises OSError."""
    make_writable(folder)
    shutil.rmtree(folder)


def make_writable(folder: Path) -> None:
    """Let the owner change a folder and the folders in it; on Windows their files too. Raises OSError."""
    os.chmod(folder, os.stat(folder).st_mode | stat.S_IRWXU)
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                make_writable(Path(entry.path))
            elif sys.platform == "win32" and not entry.is_symlink():
                os.chmod(entry.path, stat.S_IWRITE)
