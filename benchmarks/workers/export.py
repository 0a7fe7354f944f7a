"""One export in a fresh process; prints its seconds, stage by stage too, and the most memory it had, as JSON.

python -m benchmarks.workers.export SOURCE OUT RECIPE EFFORT TOKENS

RECIPE may be empty. TOKENS of text are calibrated on at most, 0 for what an export takes. `peaks` is the most memory so
far each time that the payload has grown by a twentieth.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace

import edge
from edge.memory import peak_memory
from exporters.calibration import EFFORTS

_WRITES = ("quantize", "calibrate")


def main(source: str, out: str, recipe: str, effort: str, tokens: str) -> None:
    if int(tokens):
        EFFORTS[effort] = replace(EFFORTS[effort], tokens=int(tokens))
    stages: dict[str, float] = {}
    peaks: dict[int, int | None] = {}
    current, since = "start", time.perf_counter()
    start = since

    def progress(stage: str, share: float) -> None:
        nonlocal current, since
        if stage in _WRITES:
            peaks.setdefault(int(20 * share), peak_memory())
        if stage != current:
            now = time.perf_counter()
            stages[current] = stages.get(current, 0.0) + now - since
            current, since = stage, now

    edge.export(source, out, recipe=recipe or None, effort=effort, progress=progress)
    progress("end", 1.0)
    total = time.perf_counter() - start
    print(json.dumps({"seconds": total, "stages": stages, "peak_bytes": peak_memory(), "peaks": list(peaks.values())}))


if __name__ == "__main__":
    main(*sys.argv[1:])
