"""dsedge as a speed worker: a bundle through the public pipeline, with its bookkeeping and greedy sampling."""

from __future__ import annotations

import sys
import time

import edge
from benchmarks.workers.loop import serve


def main(bundle: str, threads: int, context: int, runtime: str) -> None:
    options = edge.RuntimeOptions(runtime=runtime, threads=threads, context=context)
    with edge.load(bundle, options) as pipeline:

        def measure(prompt: list[int], new: int) -> tuple[float, float]:
            pipeline.reset()
            generate = edge.GenerateOptions(max_tokens=new + 1, ignore_eos=True)
            start = time.perf_counter()
            times = [time.perf_counter() for _ in pipeline.tokens(prompt, generate)]
            assert len(times) == new + 1
            return times[0] - start, times[-1] - times[0]

        serve(f"dsedge {edge.__version__} ({pipeline.runtime.name})", measure)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
