"""One export in a fresh process; prints its seconds, stage by stage too, and the most memory it had, as JSON.

python -m benchmarks.workers.export SOURCE OUT [RECIPE]
"""

from __future__ import annotations

import json
import sys
import time

import edge
from edge.memory import peak_memory


def main(source: str, out: str, recipe: str | None = None) -> None:
    stages: dict[str, float] = {}
    current, since = "start", time.perf_counter()
    start = since

    def progress(stage: str, share: float) -> None:
        nonlocal current, since
        if stage != current:
            now = time.perf_counter()
            stages[current] = stages.get(current, 0.0) + now - since
            current, since = stage, now

    edge.export(source, out, recipe=recipe, effort="none", progress=progress)
    progress("end", 1.0)
    total = time.perf_counter() - start
    print(json.dumps({"seconds": total, "stages": stages, "peak_bytes": peak_memory()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
