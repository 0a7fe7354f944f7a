"""How much faster several conversations are together than one after another.

    python -m benchmarks.together [BUNDLE]
    python -m benchmarks.together --llama FILE.gguf --llama-python PYTHON      also llama.cpp's sequences in one batch
    python -m benchmarks.together --clock cpu --threads 1                      on a machine that does other things too

Each is read by a thread of its own, through the public pipeline, as a server would. Decoding: tokens a second of all
of them, behind short prompts that have nothing in common. Prompts: tokens a second of all prompts, without an answer.
Engines take turns, each number of conversations after the other. The bars: four conversations decode 2.5 times as
many tokens a second as one, and sixteen prompts are no slower than 0.9 of the rate of one.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import edge
from benchmarks import models, tables
from benchmarks.engines import Worker
from benchmarks.workers.loop import CLOCKS
from edge.pipeline import Pipeline

BARS = {"decode of 4": 2.5, "prompts of 16": 0.9}
_CONTEXT = 1024
_SHORT = 16  # tokens of a prompt that is answered
# Prompts and a number of tokens → the seconds until every answer of so many tokens is there.
Seconds = Callable[[Sequence[Sequence[int]], int], float]


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens a second of all conversations together."""

    decode: float
    prompts: float


def main() -> int:
    options = _parser().parse_args()
    machine = tables.machine()
    counts = options.count or [1, 4, 16]
    with contextlib.ExitStack() as stack:
        engines = {
            name: seconds for opened in _open(options, max(counts)) for name, seconds in [stack.enter_context(opened)]
        }
        found: dict[tuple[str, int], list[Rates]] = {(name, count): [] for name in engines for count in counts}
        for run in range(options.runs + 1):
            for count in counts:
                for name, seconds in engines.items():
                    measured = measure(seconds, count, prompt=options.prompt, new=options.new, seed=run)
                    if run:
                        found[name, count].append(measured)
    head = ("", "conversations", "decode tok/s", "× one", "prompts tok/s", "× one")
    rows = [row for name in engines for row in rows_of(name, {c: best(found[name, c]) for c in counts})]
    bars = ", ".join(f"{name}: {bar} ×" for name, bar in BARS.items())
    second = "of processor time" if options.clock == "cpu" else "by the clock"
    notes = (
        f"{options.new} tokens behind {_SHORT}, prompts of {options.prompt}; seconds {second}, "
        f"best of {options.runs} runs. Bars: {bars}.",
        machine,
    )
    title = f"Several conversations at once, {options.threads} threads"
    tables.show([tables.Table(title, head, tuple(rows), notes)], markdown=options.markdown)
    return 0


def _open(
    options: argparse.Namespace, sequences: int
) -> Iterator[contextlib.AbstractContextManager[tuple[str, Seconds]]]:
    for bundle in options.bundles or [models.default_bundle(models.DEFAULT_RECIPE)]:
        yield _dsedge(bundle, options, sequences)
    for model in options.llama:
        yield _llama(model, options, sequences)


@contextlib.contextmanager
def _dsedge(bundle: Path, options: argparse.Namespace, sequences: int) -> Iterator[tuple[str, Seconds]]:
    opened = edge.RuntimeOptions(
        runtime=options.runtime, threads=options.threads, context=_CONTEXT, sequences=sequences
    )
    with edge.load(bundle, opened) as pipeline:
        name = f"{pipeline.bundle.path.stem}, {pipeline.runtime.name}"
        yield name, lambda prompts, new: seconds_of(pipeline, prompts, new, clock=CLOCKS[options.clock])


@contextlib.contextmanager
def _llama(model: Path, options: argparse.Namespace, sequences: int) -> Iterator[tuple[str, Seconds]]:
    line = [options.llama_python, "-m", "benchmarks.workers.llama_together", str(model.resolve())]
    line += [str(options.threads), str(_CONTEXT), str(sequences), options.clock]
    with Worker(f"llama: {model.name}", line) as worker:
        yield (
            worker.name,
            lambda prompts, new: float(
                worker.ask({"prompts": [list(prompt) for prompt in prompts], "new": new})["seconds"]
            ),
        )


def measure(seconds: Seconds, count: int, *, prompt: int, new: int, seed: int) -> Rates:
    """The rates of so many conversations with prompts of random ids."""
    random = np.random.default_rng([seed, count])

    def prompts(length: int) -> list[list[int]]:
        found: list[list[int]] = random.integers(300, 4000, (count, length)).tolist()
        return found

    decode = seconds(prompts(_SHORT), new + 1) - seconds(prompts(_SHORT), 1)
    return Rates(count * new / decode, count * prompt / seconds(prompts(prompt), 1))


def seconds_of(pipeline: Pipeline, prompts: Sequence[Sequence[int]], new: int, *, clock: Callable[[], float]) -> float:
    """How long it takes until every answer of `new` tokens is there, each read by a thread."""
    pipeline.reset()
    generate = edge.GenerateOptions(max_tokens=new, ignore_eos=True)

    def read(prompt: Sequence[int]) -> None:
        for _ in pipeline.tokens(prompt, generate):
            pass

    threads = [threading.Thread(target=read, args=(prompt,)) for prompt in prompts]
    start = clock()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return clock() - start


def best(rates: Sequence[Rates]) -> Rates:
    return Rates(max(rate.decode for rate in rates), max(rate.prompts for rate in rates))


def rows_of(name: str, found: Mapping[int, Rates]) -> tuple[tuple[str, ...], ...]:
    """An engine's rows, relative to its smallest number of conversations."""
    one = found[min(found)]
    return tuple(
        (name, str(count), f"{rate.decode:.0f}", f"{rate.decode / one.decode:.2f}", f"{rate.prompts:.0f}",
         f"{rate.prompts / one.prompts:.2f}")
        for count, rate in sorted(found.items())
    )  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = tables.parser(__doc__)
    parser.add_argument(
        "bundles", metavar="BUNDLE", nargs="*", type=Path, help="a bundle's folder; several [the default model]"
    )
    parser.add_argument("--runtime", default="auto", help="a backend of dsedge [auto]")
    parser.add_argument(
        "--llama", type=Path, metavar="FILE", action="append", default=[], help="a GGUF file; repeatable"
    )
    parser.add_argument(
        "--llama-python", default=sys.executable, metavar="PYTHON", help="the interpreter that has llama-cpp-python"
    )
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall", help="what seconds are of [wall]")
    parser.add_argument("--count", type=int, action="append", help="how many at once; repeatable [1 4 16]")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the long prompts [512]")
    parser.add_argument("--new", type=int, default=96, help="tokens of an answer [96]")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    return parser


if __name__ == "__main__":
    sys.exit(main())
