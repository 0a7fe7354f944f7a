"""What the tests of whole exports share."""

from __future__ import annotations

import hashlib
from pathlib import Path


def contents(folder: Path) -> dict[str, str]:
    """The files below a folder: relative path → SHA-256."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
