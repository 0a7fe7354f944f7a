"""What a calibration will take, and what there is."""

from __future__ import annotations

import os

from edge.memory import memory_limit


def memory() -> int | None:
    """The bytes that this process may use: a container's limit or the machine's memory; None where none is told."""
    limit = memory_limit()
    if limit is None and hasattr(os, "sysconf"):  # absent on Windows
        limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return limit
