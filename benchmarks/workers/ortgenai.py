"""ONNX Runtime GenAI as a speed worker: a folder of its model builder, greedy."""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import onnxruntime_genai as og

from benchmarks.workers.loop import serve


def main(folder: str, threads: int, context: int) -> None:
    start = time.perf_counter()
    config = og.Config(folder)
    config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}}))
    model = og.Model(config)
    loaded = time.perf_counter() - start

    def measure(prompt: list[int], new: int) -> tuple[float, float]:
        params = og.GeneratorParams(model)
        # The smallest length keeps an end token from ending the run.
        params.set_search_options(max_length=context, min_length=len(prompt) + new + 1, do_sample=False)
        generator = og.Generator(model, params)
        start = time.perf_counter()
        generator.append_tokens(np.asarray(prompt, np.int32))
        generator.generate_next_token()
        first = time.perf_counter()
        for _ in range(new):
            generator.generate_next_token()
        return first - start, time.perf_counter() - first

    serve(f"ONNX Runtime GenAI {og.__version__}", measure, load_s=loaded)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
