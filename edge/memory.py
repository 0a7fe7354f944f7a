"""What this process has used of the machine's memory."""

from __future__ import annotations

import sys
from pathlib import Path

from edge import texts


def peak_memory() -> int | None:
    """The most memory that this process has had resident, in bytes; None where the system does not tell."""
    if sys.platform == "linux":
        # ru_maxrss would count what the parent had resident when it forked.
        for line in texts.read_system(Path("/proc/self/status")).splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return None
    if sys.platform == "darwin":
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return None
