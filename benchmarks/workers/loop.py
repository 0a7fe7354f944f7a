"""The loop of a speed worker: a line of JSON in for each measurement, a line of JSON out.

    → {"prompt": [ids], "new": 128}
    ← {"prefill_s": 0.61, "decode_s": 0.82, "idle_cpu_s": 0.01}

The first line out is {"engine": "name version"}. `idle_cpu_s` is the processor time since the last answer: an engine
whose threads keep spinning between runs takes time from the others, and this shows it.
Only the standard library is needed here, since each worker runs in its own engine's interpreter.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

# A prompt of ids and a number n → (seconds from the call to the first token, seconds for n tokens more).
Measure = Callable[[list[int], int], tuple[float, float]]


def serve(engine: str, measure: Measure) -> None:
    """Answer requests until stdin ends. What the engine itself prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    print(json.dumps({"engine": engine}), file=answers)
    idle = time.process_time()
    for line in sys.stdin:
        request = json.loads(line)
        waited = time.process_time() - idle
        prefill, decode = measure(request["prompt"], request["new"])
        answer = {"prefill_s": prefill, "decode_s": decode, "idle_cpu_s": waited}
        print(json.dumps(answer), file=answers)
        idle = time.process_time()
