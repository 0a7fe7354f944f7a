"""An interrupt at the n-th line that our own code runs, as Ctrl-C may come at any."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import edge

_OURS = tuple(str(Path(edge.__file__).parents[1] / part) for part in ("edge", "runtimes"))


def interrupted_at(line: int, work: Callable[[], object]) -> bool:
    """Do the work and raise KeyboardInterrupt where its `line`-th line would run; whether there were that many."""
    left = line

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(_OURS):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        sys.settrace(before)
        assert left == 0
        return True
    finally:
        sys.settrace(before)
    return left <= 0  # an interrupt that was swallowed
