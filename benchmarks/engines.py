"""Engines in their own processes, told to measure one after the other, and what follows from the samples."""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Sample:
    """One run: seconds to the first token and for the others; processor seconds that the wait before it took.

    `peak_bytes` is the most memory that the process has had until then; None where the system does not tell.
    """

    prefill_s: float
    decode_s: float
    idle_cpu_s: float
    peak_bytes: int | None


class Engine(Protocol):
    """Something that measures one prompt when it is told to, and does nothing in between."""

    def run(self, prompt: Sequence[int], new: int) -> Sample: ...


@dataclass(frozen=True, slots=True)
class Command:
    """How to start a worker: the row's name, its interpreter, its module, what it measures, and of dsedge on what."""

    name: str
    python: str
    module: str
    model: Path
    runtime: str = ""
    kv_dtype: str = "auto"

    def start(self, threads: int, context: int) -> Worker:
        """Start it and wait until its model is loaded. Raises WorkerError if it ends instead."""
        line = [self.python, "-m", self.module, str(self.model.resolve()), str(threads), str(context)]
        if self.runtime:
            line += [self.runtime, self.kv_dtype]
        return Worker(self.name, line)


class WorkerError(Exception):
    """A worker ended early; what it said is on stderr."""


class Worker:
    """A process that speaks the protocol of `benchmarks.workers.loop`. A context manager that ends it.

    `engine` is its name and version, `load_s` what opening the model took; `kv_bytes` are reserved for keys and
    values, `kv_row_bytes` hold a token's in one layer, all 0 where an engine does not tell.
    """

    def __init__(self, name: str, line: Sequence[str]) -> None:
        self.name = name
        self._process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        ready = self._read()
        self.engine: str = ready["engine"]
        self.load_s: float = ready.get("load_s", 0.0)
        self.kv_bytes: int = ready.get("kv_bytes", 0)
        self.kv_row_bytes: float = ready.get("kv_row_bytes", 0)

    def run(self, prompt: Sequence[int], new: int) -> Sample:
        return Sample(**self.ask({"prompt": list(prompt), "new": new}))

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request. Raises WorkerError."""
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):  # the answer that is missing then says so
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            self.close()
            code = self._process.returncode
            raise WorkerError(f"{self.name}: its process ended with exit code {code}; the reason is above")
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        """End the process, which stops when its stdin does. Idempotent."""
        assert self._process.stdin
        assert self._process.stdout
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def rounds(
    engines: Sequence[Engine], prompts: Sequence[Sequence[int]], new: int, *, pause_s: float = 0.0
) -> Iterator[list[Sample]]:
    """Run the engines in turn on each prompt (A B, A B, …), one at a time: their samples, for every prompt but the
    first, which only warms up.

    The pause before each run is for the threads of the engine before, which may look for more work for a while.
    """
    for number, prompt in enumerate(prompts):
        samples = []
        for engine in engines:
            time.sleep(pause_s)
            samples.append(engine.run(prompt, new))
        if number:
            yield samples


@dataclass(frozen=True, slots=True)
class Rates:
    """Medians of one engine in seconds and tokens a second, and how they stand to the baseline's.

    `*_ratio` is the ratio of the medians, `*_paired` the median of the rounds' own ratios; above 1 is faster.
    `idle_cpu_s` is the processor time that a wait for the next run took, on average.
    """

    ttft_s: float
    prefill: float
    decode: float
    prefill_ratio: float
    decode_ratio: float
    prefill_paired: float
    decode_paired: float
    idle_cpu_s: float
    peak_bytes: int | None


def compare(samples: Sequence[Sequence[Sample]], baseline: int, prompt: int, new: int) -> list[Rates]:
    """The rates of every engine, from the same rounds of `prompt` and `new` tokens; `baseline` is one's index."""
    base_prefill = [prompt / sample.prefill_s for sample in samples[baseline]]
    base_decode = [new / sample.decode_s for sample in samples[baseline]]
    found = []
    for runs in samples:
        prefill = [prompt / sample.prefill_s for sample in runs]
        decode = [new / sample.decode_s for sample in runs]
        found.append(
            Rates(
                ttft_s=statistics.median(sample.prefill_s for sample in runs),
                prefill=statistics.median(prefill),
                decode=statistics.median(decode),
                prefill_ratio=statistics.median(prefill) / statistics.median(base_prefill),
                decode_ratio=statistics.median(decode) / statistics.median(base_decode),
                prefill_paired=_paired(prefill, base_prefill),
                decode_paired=_paired(decode, base_decode),
                idle_cpu_s=statistics.mean(sample.idle_cpu_s for sample in runs),
                peak_bytes=runs[-1].peak_bytes,
            )
        )
    return found


def _paired(rates: Sequence[float], base: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(rates, base, strict=True))
