"""The loop of a speed worker: a line of JSON in for each measurement, a line of JSON out.

    → {"prompt": [ids], "new": 128}
    ← {"prefill_s": 0.61, "decode_s": 0.82, "idle_cpu_s": 0.01, "peak_bytes": 310000000}

The first line out is {"engine": "name version", "load_s": 0.4, "kv_bytes": 0, "kv_row_bytes": 0}. `load_s` is what
opening the model took, without imports. `idle_cpu_s` is the processor time since the last answer: an engine whose
threads keep spinning between runs takes time from the others, and this shows it. `peak_bytes` is the most memory that
the process has had. Only the standard library is needed here (`edge.memory` needs no more), since each worker runs in
its own engine's interpreter.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from edge.memory import peak_memory

# A prompt of ids and a number n → (seconds from the call to the first token, seconds for n tokens more).
Measure = Callable[[list[int], int], tuple[float, float]]
# What seconds are of: what a clock on the wall shows, or what processors worked for all threads of the process.
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


def serve(engine: str, measure: Measure, *, load_s: float, kv_bytes: int = 0, kv_row_bytes: float = 0) -> None:
    """Answer requests until stdin ends.

    `kv_bytes` are reserved for keys and values, `kv_row_bytes` of them hold a token's in one layer.
    """
    ready = {"engine": engine, "load_s": load_s, "kv_bytes": kv_bytes, "kv_row_bytes": kv_row_bytes}
    idle = time.process_time()

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        nonlocal idle
        waited = time.process_time() - idle
        prefill, decode = measure(request["prompt"], request["new"])
        idle = time.process_time()
        return {"prefill_s": prefill, "decode_s": decode, "idle_cpu_s": waited, "peak_bytes": peak_memory()}

    respond(ready, answer)


def respond(ready: dict[str, Any], answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Say `ready`, then answer each line that comes until stdin ends. What the engine itself prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    print(json.dumps(ready), file=answers)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers)
