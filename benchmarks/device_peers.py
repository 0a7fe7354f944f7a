"""Other engines on a GPU, beside the torch backend: each measures one prompt, in this process, greedily."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_RUNS = 3
Times = tuple[float, float, float]  # seconds of loading, of a prompt, and of the tokens after it


@dataclass(frozen=True, slots=True)
class Peer:
    """`module` is what must be installed; `option` names the command's option for a model, "" for the GGUF source."""

    name: str
    module: str
    option: str
    measure: Callable[[str, int, int], Times]


def _llama(path: str, prompt: int, new: int) -> Times:
    import llama_cpp

    start = time.perf_counter()
    model = llama_cpp.Llama(path, n_ctx=prompt + new, n_batch=512, n_gpu_layers=-1, flash_attn=True, verbose=False)
    load = time.perf_counter() - start

    def run(seed: int) -> tuple[float, float]:
        model.reset()
        start = time.perf_counter()
        model.eval([(seed + 7 * index) % model.n_vocab() for index in range(prompt)])
        token = model.sample(temp=0.0)
        first = time.perf_counter()
        for _ in range(new):
            model.eval([token])
            token = model.sample(temp=0.0)
        return first - start, time.perf_counter() - first

    return load, *_medians(run)


def _mlx(path: str, prompt: int, new: int) -> Times:
    import mlx_lm

    start = time.perf_counter()
    model, tokenizer, *_ = mlx_lm.load(path)
    load = time.perf_counter() - start

    def run(seed: int) -> tuple[float, float]:
        ids = [(seed + 7 * index) % tokenizer.vocab_size for index in range(prompt)]
        last: Any = list(mlx_lm.stream_generate(model, tokenizer, ids, max_tokens=new))[-1]
        return prompt / last.prompt_tps, new / last.generation_tps

    return load, *_medians(run)


def _genai(path: str, prompt: int, new: int) -> Times:
    import onnxruntime_genai

    start = time.perf_counter()
    model = onnxruntime_genai.Model(path)
    load = time.perf_counter() - start

    def run(seed: int) -> tuple[float, float]:
        parameters = onnxruntime_genai.GeneratorParams(model)
        parameters.set_search_options(max_length=prompt + new + 1, do_sample=False)
        generator = onnxruntime_genai.Generator(model, parameters)
        start = time.perf_counter()
        generator.append_tokens([(seed + 7 * index) % 49_000 for index in range(prompt)])
        generator.generate_next_token()
        first = time.perf_counter()
        for _ in range(new):
            generator.generate_next_token()
        return first - start, time.perf_counter() - first

    return load, *_medians(run)


def _medians(run: Callable[[int], tuple[float, float]]) -> tuple[float, float]:
    found = [run(seed) for seed in range(_RUNS + 1)][1:]
    return statistics.median(item[0] for item in found), statistics.median(item[1] for item in found)


PEERS = (
    Peer("llama.cpp", "llama_cpp", "", _llama),
    Peer("mlx-lm", "mlx_lm", "mlx", _mlx),
    Peer("onnxruntime-genai", "onnxruntime_genai", "genai", _genai),
)
