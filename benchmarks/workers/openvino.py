"""OpenVINO GenAI as a speed worker: a folder of optimum-intel's export, greedy, with the pipeline's own choices.

The pipeline says itself when the first token was there and what the others took on average. Its cache grows as it is
needed, so the context is of no use here.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import openvino
import openvino_genai

from benchmarks.workers.loop import serve


def main(folder: str, threads: int) -> None:
    start = time.perf_counter()
    pipeline = openvino_genai.LLMPipeline(folder, "CPU", INFERENCE_NUM_THREADS=threads)
    loaded = time.perf_counter() - start

    def measure(prompt: list[int], new: int) -> tuple[float, float]:
        config = openvino_genai.GenerationConfig(
            max_new_tokens=new + 1, min_new_tokens=new + 1, ignore_eos=True, do_sample=False, apply_chat_template=False
        )
        ids = np.asarray([prompt], np.int64)
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        times = pipeline.generate(inputs, config).perf_metrics
        assert times.get_num_generated_tokens() == new + 1
        return times.get_ttft().mean / 1e3, times.get_tpot().mean * new / 1e3

    serve(f"OpenVINO GenAI {openvino_genai.__version__.partition('-')[0]}", measure, load_s=loaded)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
