"""llama.cpp as a speed worker: a GGUF file through llama-cpp-python, greedy."""

from __future__ import annotations

import sys
import time

import llama_cpp

from benchmarks.workers.loop import serve


def main(path: str, threads: int, context: int) -> None:
    model = llama_cpp.Llama(path, n_ctx=context, n_batch=512, n_threads=threads, n_threads_batch=threads, verbose=False)

    def measure(prompt: list[int], new: int) -> tuple[float, float]:
        model.reset()
        start = time.perf_counter()
        model.eval(prompt)
        token = model.sample(temp=0.0)
        first = time.perf_counter()
        for _ in range(new):
            model.eval([token])
            token = model.sample(temp=0.0)
        return first - start, time.perf_counter() - first

    serve(f"llama-cpp-python {llama_cpp.__version__}", measure)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
