"""llama.cpp as a speed worker: a GGUF file through llama-cpp-python, greedy."""

from __future__ import annotations

import sys
import time

import llama_cpp
import numpy as np

from benchmarks.workers.loop import serve


def main(path: str, threads: int, context: int) -> None:
    start = time.perf_counter()
    # llama.cpp itself takes flash attention where it can, which is faster; its binding has it off unless asked.
    model = llama_cpp.Llama(
        path, n_ctx=context, n_batch=512, n_threads=threads, n_threads_batch=threads, flash_attn=True, verbose=False
    )
    loaded = time.perf_counter() - start

    def likeliest() -> int:
        # The binding's own `sample` copies all candidates each time, which a small model would feel.
        logits = llama_cpp.llama_get_logits_ith(model.ctx, -1)
        return int(np.argmax(np.ctypeslib.as_array(logits, (model.n_vocab(),))))

    def measure(prompt: list[int], new: int) -> tuple[float, float]:
        model.reset()
        start = time.perf_counter()
        model.eval(prompt)
        token = likeliest()
        first = time.perf_counter()
        for _ in range(new):
            model.eval([token])
            token = likeliest()
        return first - start, time.perf_counter() - first

    serve(f"llama-cpp-python {llama_cpp.__version__}", measure, load_s=loaded)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
