"""Where the command `dsedge` starts. It imports next to nothing, so that Ctrl-C is quiet from the first moment on."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130


def main() -> int:
    """Run the command line; the exit code. Ctrl-C while it is still being imported ends the process at once."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        # Raised inside an import, KeyboardInterrupt could surface as another error, or as text on stderr.
        signal.signal(signal.SIGINT, _leave)
    from edge.cli import main as run

    signal.signal(signal.SIGINT, before)
    return run()


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
