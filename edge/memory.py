"""What this process has used of the machine's memory, and how much it may use."""

from __future__ import annotations

import sys
from pathlib import Path

from edge.cgroups import read_limits, read_text


def peak_memory() -> int | None:
    """The most memory that this process has had resident, in bytes; None where the system does not tell."""
    if sys.platform == "linux":
        # ru_maxrss would count what the parent had resident when it forked.
        for line in read_text(Path("/proc/self/status")).splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return None
    if sys.platform == "darwin":
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return None


def available_memory(root: Path = Path("/")) -> int | None:
    """The bytes that this process could still take without the system having to swap or to end it; None: unknown."""
    found = []
    for line in read_text(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) * 1024)
    limit = memory_limit(root)
    if limit is not None:
        found.append(max(0, limit - _own_memory(root)))
    return min(found, default=None)


def _own_memory(root: Path) -> int:
    """The bytes that this process has to itself: pages of files can be read again, and are not counted."""
    for line in read_text(root / "proc/self/status").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def memory_limit(root: Path = Path("/")) -> int | None:
    """The bytes that the container or service of this process may use; None where nothing says so.

    Behind it the system does not refuse memory but ends the process.
    """
    limits = read_limits(root, "memory", v1=("memory.limit_in_bytes",), v2="memory.max")
    return min((limit for limit, *_ in limits), default=None)
