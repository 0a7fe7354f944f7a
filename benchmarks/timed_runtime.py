"""A backend that runs another one and notes when each forward began and ended.

`install` puts it into `edge.runtime.RUNTIMES` as "timed", so that what is measured goes through the public pipeline.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from edge.bundle import Bundle
from edge.kv import KvLayout
from edge.options import RuntimeOptions
from edge.runtime import RUNTIMES, Batch, Runtime, Support, automatic, open_runtime
from edge.runtime import support as support_of

NAME = "timed"


class TimedRuntime:
    """A Runtime; `forwards` holds (start, end) of every forward, in seconds of `time.perf_counter`."""

    def __init__(self, inner: Runtime) -> None:
        self.forwards: list[tuple[float, float]] = []
        self.spec, self.layout, self.device = inner.spec, inner.layout, inner.device
        self.name = f"{NAME} {inner.name}"
        self.capabilities, self.move, self.close = inner.capabilities, inner.move, inner.close
        self.kv_dtypes, self.read_rows, self.write_rows = inner.kv_dtypes, inner.read_rows, inner.write_rows
        self.notes = inner.notes
        self._inner = inner

    def forward(self, batch: Batch) -> list[Any]:
        start = time.perf_counter()
        result = self._inner.forward(batch)
        self.forwards.append((start, time.perf_counter()))
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
