"""How much faster several conversations are together than one after another.

    python -m benchmarks.together [BUNDLE]

Each is read by a thread of its own, through the public pipeline, as a server would. Decoding: tokens a second of all
of them, behind short prompts that have nothing in common. Prompts: tokens a second of all prompts, without an answer.
The bars: four conversations decode 2.5 times as many tokens a second as one, and sixteen prompts are no slower than
0.9 of the rate of one.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import edge
from benchmarks import models, tables
from edge.pipeline import Pipeline

BARS = {"decode of 4": 2.5, "prompts of 16": 0.9}


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens a second of all conversations together."""

    decode: float
    prompts: float


def main() -> int:
    options = _parser().parse_args()
    machine = tables.machine()
    opened = edge.RuntimeOptions(runtime=options.runtime, threads=options.threads, context=1024, sequences=16)
    found: dict[int, list[Rates]] = {count: [] for count in options.count or (1, 4, 16)}
    with edge.load(options.bundle or models.default_bundle(models.DEFAULT_RECIPE), opened) as pipeline:
        for run in range(options.runs + 1):
            for count, rates in found.items():
                measured = measure(pipeline, count, prompt=options.prompt, new=options.new, seed=run)
                if run:
                    rates.append(measured)
        title = f"{pipeline.bundle.path.stem}, {pipeline.runtime.name}, {options.threads} threads: several at once"
    rows = rows_of({count: best(rates) for count, rates in found.items()})
    head = ("conversations", "decode tok/s", "× one", "prompts tok/s", "× one")
    bars = ", ".join(f"{name}: {bar} ×" for name, bar in BARS.items())
    notes = (
        f"{options.new} tokens behind 16, prompts of {options.prompt}; best of {options.runs} runs. Bars: {bars}.",
    )
    tables.show([tables.Table(title, head, rows, (*notes, machine))], markdown=options.markdown)
    return 0


def measure(pipeline: Pipeline, count: int, *, prompt: int, new: int, seed: int) -> Rates:
    """The rates of so many conversations with prompts of random ids."""
    random = np.random.default_rng([seed, count])
    short, long = (random.integers(300, 4000, (count, length)).tolist() for length in (16, prompt))
    decode = _seconds(pipeline, short, new + 1) - _seconds(
        pipeline, random.integers(300, 4000, (count, 16)).tolist(), 1
    )
    return Rates(count * new / decode, count * prompt / _seconds(pipeline, long, 1))


def _seconds(pipeline: Pipeline, prompts: Sequence[Sequence[int]], new: int) -> float:
    """How long it takes until every answer of `new` tokens is there, each read by a thread."""
    pipeline.reset()
    generate = edge.GenerateOptions(max_tokens=new, ignore_eos=True)

    def read(prompt: Sequence[int]) -> None:
        for _ in pipeline.tokens(prompt, generate):
            pass

    threads = [threading.Thread(target=read, args=(prompt,)) for prompt in prompts]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start


def best(rates: Sequence[Rates]) -> Rates:
    return Rates(max(rate.decode for rate in rates), max(rate.prompts for rate in rates))


def rows_of(found: dict[int, Rates]) -> tuple[tuple[str, ...], ...]:
    """The table's rows, relative to the smallest number of conversations."""
    one = found[min(found)]
    return tuple(
        (str(count), f"{rate.decode:.0f}", f"{rate.decode / one.decode:.2f}", f"{rate.prompts:.0f}",
         f"{rate.prompts / one.prompts:.2f}")
        for count, rate in sorted(found.items())
    )  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = tables.parser(__doc__)
    parser.add_argument("bundle", metavar="BUNDLE", nargs="?", type=Path, help="a bundle's folder [the default model]")
    parser.add_argument("--runtime", default="auto", help="a backend of dsedge [auto]")
    parser.add_argument("--count", type=int, action="append", help="how many at once; repeatable [1 4 16]")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the long prompts [512]")
    parser.add_argument("--new", type=int, default=96, help="tokens of an answer [96]")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    return parser


if __name__ == "__main__":
    sys.exit(main())
