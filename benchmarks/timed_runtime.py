"""A backend that runs another one and notes when each forward began and ended, and what it took.

`install` puts it into `edge.runtime.RUNTIMES` as "timed", so that what is measured goes through the public pipeline.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from edge.bundle import Bundle
from edge.kv import KvLayout
from edge.options import RuntimeOptions
from edge.runtime import RUNTIMES, Batch, Runtime, Support, automatic, open_runtime
from edge.runtime import support as support_of

NAME = "timed"
# What a moment is, and what a forward took: by the clock on the wall; or of the process's work, where a forward is its
# own thread's alone, whatever other threads do meanwhile: right for one thread of the engine.
CLOCKS: dict[str, tuple[Callable[[], float], Callable[[], float]]] = {
    "wall": (time.perf_counter, time.perf_counter),
    "cpu": (time.process_time, time.thread_time),
}


@dataclass(frozen=True, slots=True)
class Forward:
    """When a forward began and ended, the seconds that it took, and how many sequences it had."""

    start: float
    end: float
    took: float
    sequences: int = 1


class TimedRuntime:
    """A Runtime; `forwards` holds every forward, in seconds of `clock`, one of CLOCKS."""

    clock = "wall"

    def __init__(self, inner: Runtime) -> None:
        self.forwards: list[Forward] = []
        self.spec, self.layout, self.device = inner.spec, inner.layout, inner.device
        self.name = f"{NAME} {inner.name}"
        self.capabilities, self.move, self.close = inner.capabilities, inner.move, inner.close
        self.kv_dtypes, self.read_rows, self.write_rows = inner.kv_dtypes, inner.read_rows, inner.write_rows
        self.notes = inner.notes
        self._inner = inner

    def forward(self, batch: Batch) -> list[Any]:
        now, worked = CLOCKS[self.clock]
        start, before = now(), worked()
        result = self._inner.forward(batch)
        took = worked() - before
        self.forwards.append(Forward(start, now(), took, len(batch.segments)))
        return result

    @property
    def kv_bytes(self) -> int:
        return self._inner.kv_bytes


_inner = ""


def install(runtime: str) -> str:
    """Make the backend known, to run another one; the name to ask for."""
    global _inner  # noqa: PLW0603 (the table of backends names modules, so this is where the choice can be kept)
    _inner = automatic() if runtime == "auto" else runtime
    RUNTIMES[NAME] = __name__
    return NAME


def support() -> Support:
    return support_of(_inner)


def open_model(bundle: Bundle, layout: KvLayout, options: RuntimeOptions) -> TimedRuntime:
    return TimedRuntime(open_runtime(bundle, layout, replace(options, runtime=_inner)))
