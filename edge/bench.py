"""Measuring a bundle on this machine: prefill, decode, time to first token, loading and memory."""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import edge
from edge.cores import physical_cores
from edge.errors import OptionError
from edge.kv import KvDtype
from edge.memory import peak_memory
from edge.options import GenerateOptions, RuntimeOptions

if TYPE_CHECKING:
    from edge.pipeline import Pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What to measure: `prompt` random tokens, then `new` greedy ones, `runs` times after one that is not counted."""

    runtime: str = "auto"
    device: str = "auto"
    prompt: int = 512
    new: int = 128
    threads: int | None = None
    runs: int = 5
    seed: int = 0
    kv_dtype: KvDtype = "auto"

    def __post_init__(self) -> None:
        for name, low in (("prompt", 1), ("new", 2), ("runs", 1), ("seed", 0)):
            if getattr(self, name) < low:
                raise OptionError(f"{name} is {getattr(self, name)}; it must be at least {low}")


@dataclass(frozen=True, slots=True)
class Run:
    """One measured run. TTFT is the time from the request to the first new token, the prefill rate what follows
    from it; the decode rate counts the tokens after the first. Seconds, and tokens a second."""

    ttft_s: float
    prefill_tok_s: float
    decode_tok_s: float


@dataclass(frozen=True, slots=True)
class Report:
    """Medians over the runs. `load_s` includes importing the backend; `peak_mb` is the process's, 10^6 bytes."""

    model: str
    runtime: str
    device: str
    threads: int
    prompt: int
    new: int
    runs: tuple[Run, ...]
    prefill_tok_s: float
    decode_tok_s: float
    ttft_ms: float
    load_s: float
    peak_mb: float | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def bench(model: str | Path, options: BenchOptions) -> Report:
    """Load a bundle and measure it. Each run has its own random prompt, so that no prefix is found in the cache.

    Raises what `edge.load` raises, and OptionError when the tokens do not fit the model.
    """
    start = time.perf_counter()
    opened = RuntimeOptions(
        runtime=options.runtime,
        device=options.device,
        threads=options.threads,
        context=options.prompt + options.new,
        kv_dtype=options.kv_dtype,
    )
    with edge.load(model, opened) as pipeline:
        load_s = time.perf_counter() - start
        random = np.random.default_rng(options.seed)
        runs = [_run(pipeline, random, options) for _ in range(options.runs + 1)][1:]
        peak = peak_memory()
        return Report(
            model=pipeline.bundle.manifest.name,
            runtime=pipeline.runtime.name,
            device=pipeline.runtime.device,
            threads=options.threads or physical_cores(),
            prompt=options.prompt,
            new=options.new,
            runs=tuple(runs),
            prefill_tok_s=statistics.median(run.prefill_tok_s for run in runs),
            decode_tok_s=statistics.median(run.decode_tok_s for run in runs),
            ttft_ms=statistics.median(run.ttft_s for run in runs) * 1000,
            load_s=load_s,
            peak_mb=None if peak is None else peak / 1e6,
        )


def _run(pipeline: Pipeline, random: np.random.Generator, options: BenchOptions) -> Run:
    vocab = pipeline.bundle.spec.vocab_size
    ids = np.setdiff1d(np.arange(vocab), pipeline.tokenizer.padded(vocab))
    prompt = random.choice(ids, options.prompt).tolist()
    generate = GenerateOptions(max_tokens=options.new, ignore_eos=True, temperature=0.0, repetition_penalty=1.0)
    start = time.perf_counter()
    times = [time.perf_counter() - start for _ in pipeline.tokens(prompt, generate)]
    if len(times) != options.new:
        raise OptionError(f"{len(times)} tokens came where {options.new} were asked for; try --new {len(times)}")
    first, last = times[0], times[-1]
    return Run(first, options.prompt / first, (options.new - 1) / max(last - first, 1e-9))
