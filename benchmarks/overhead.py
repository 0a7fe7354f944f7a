"""How much of a decode step is not the backend's forward: sampling, bookkeeping of the cache, detokenizing.

    python -m benchmarks.overhead [BUNDLE]
    python -m benchmarks.overhead --clock cpu --threads 1       on a machine that does other things too

A step lasts from the end of one forward to the end of the next. Its overhead is everything but that next forward:
storing the new row, choosing the token, turning it into text, handing it to the caller, planning slots. The prompt is
short, since a long one would make forwards longer and the share smaller. Of several answers at once each has a thread
that reads it; their steps are those between the first and the last forward of all of them. The bar is 5%.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import edge
from benchmarks import models, tables, timed_runtime
from benchmarks.timed_runtime import CLOCKS, Forward, TimedRuntime
from edge.pipeline import Pipeline

BAR = 0.05
SEVERAL = 16  # answers at once, in rows of their own
PROMPT = "Tell a long story about a lighthouse keeper and the sea."
# A row's name → (whether text is made, options of sampling).
CASES: dict[str, tuple[bool, dict[str, float]]] = {
    "greedy, ids": (False, {}),
    "greedy, text": (True, {}),
    "temperature 0.8, text": (True, {"temperature": 0.8}),
    "temperature 0.8, top-p 0.95, text": (True, {"temperature": 0.8, "top_p": 0.95}),
    "temperature 1.0, top-k 40, min-p 0.05, text": (True, {"temperature": 1.0, "top_k": 40, "min_p": 0.05}),
    "temperature 0.8, top-p 0.95, all penalties, text": (
        True,
        {
            "temperature": 0.8,
            "top_p": 0.95,
            "repetition_penalty": 1.1,
            "presence_penalty": 0.1,
            "frequency_penalty": 0.1,
        },
    ),
}


@dataclass(frozen=True, slots=True)
class Step:
    """Mean seconds of a decode step in one run, and of the forward in it."""

    total: float
    forward: float

    @property
    def share(self) -> float:
        return 1 - self.forward / self.total


def main() -> int:
    options = _parser().parse_args()
    if options.clock == "cpu" and options.threads != 1:
        raise SystemExit("--clock cpu sees the work of the calling thread alone; use --threads 1")
    machine = tables.machine()
    TimedRuntime.clock = options.clock
    opened = edge.RuntimeOptions(
        runtime=timed_runtime.install(options.runtime), threads=options.threads, context=512, sequences=SEVERAL
    )
    with edge.load(options.bundle or models.default_bundle(models.DEFAULT_RECIPE), opened) as pipeline:
        steps = measure(pipeline, options.new, options.runs)
        engine = pipeline.runtime.name.removeprefix(f"{timed_runtime.NAME} ")
        title = f"{pipeline.bundle.path.stem}, {engine}: a decode step"
        title += f", {options.threads} threads, medians of {options.runs} runs"
    head = ("", "step µs", "forward µs", "rest µs", "rest")
    rows = tuple(_row(name, runs) for name, runs in steps.items())
    notes = (f"{options.new} tokens a run; the bar is {BAR:.0%}.", machine)
    tables.show([tables.Table(title, head, rows, notes)], markdown=options.markdown)
    return 0


def measure(pipeline: Pipeline, new: int, runs: int) -> dict[str, list[Step]]:
    """The cases in turn, alone and several at once, `runs` times each after one that is not counted."""
    found: dict[str, list[Step]] = {}
    for number in range(runs + 1):
        for answers in (1, SEVERAL):
            for name, (text, sampling) in CASES.items():
                generate = edge.GenerateOptions(max_tokens=new, ignore_eos=True, seed=number, **sampling)  # type: ignore[arg-type]
                step = _run(pipeline, generate, answers, text=text)
                if number:
                    found.setdefault(name if answers == 1 else f"{name}; {answers} at once", []).append(step)
    return found


def _run(pipeline: Pipeline, options: edge.GenerateOptions, answers: int, *, text: bool) -> Step:
    runtime = pipeline.runtime
    assert isinstance(runtime, TimedRuntime)
    pipeline.reset()
    runtime.forwards.clear()
    ids = pipeline.encode(PROMPT)

    def read() -> None:
        answer: Iterable[object] = pipeline.stream(PROMPT, options) if text else pipeline.tokens(ids, options)
        for _ in answer:
            pass

    if answers == 1:
        read()
    else:
        threads = [threading.Thread(target=read) for _ in range(answers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert options.max_tokens is not None
    return step_of(runtime.forwards[-options.max_tokens :] if answers == 1 else of_all(runtime.forwards, answers))


def of_all(forwards: list[Forward], answers: int) -> list[Forward]:
    """Those between the first and the last forward that so many answers had in common."""
    common = [n for n, forward in enumerate(forwards) if forward.sequences == answers]
    return forwards[common[0] : common[-1] + 1]


def step_of(forwards: list[Forward]) -> Step:
    """The mean step between the first of some forwards and those that follow it."""
    count = len(forwards) - 1
    total = forwards[-1].end - forwards[0].end
    return Step(total / count, sum(forward.took for forward in forwards[1:]) / count)


def _row(name: str, steps: list[Step]) -> tuple[str, ...]:
    median: Callable[[Iterable[float]], float] = statistics.median
    total, forward = median(s.total for s in steps), median(s.forward for s in steps)
    rest, share = median(s.total - s.forward for s in steps), median(s.share for s in steps)
    return name, f"{total * 1e6:.0f}", f"{forward * 1e6:.0f}", f"{rest * 1e6:.0f}", f"{share:.1%}"


def _parser() -> argparse.ArgumentParser:
    parser = tables.parser(__doc__)
    parser.add_argument("bundle", metavar="BUNDLE", nargs="?", type=Path, help="a bundle's folder [the default model]")
    parser.add_argument("--runtime", default="auto", help="a backend of dsedge [auto]")
    parser.add_argument(
        "--clock", choices=list(CLOCKS), default="wall", help="what seconds are of; cpu: of work [wall]"
    )
    parser.add_argument("--new", type=int, default=128, help="tokens a run [128]")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    return parser


if __name__ == "__main__":
    sys.exit(main())
