"""Prefill and decode speed of dsedge bundles, side by side with other engines.

    python -m benchmarks.speed
    python -m benchmarks.speed --ortgenai DIR --ortgenai-python PYTHON --llama FILE.gguf --llama-python PYTHON

Every engine loads its model in a process of its own and waits there. In each round all of them run the same fresh
random prompt, one after the other, never two at a time; one round warms up, the medians are over the others. Prefill
is measured to the first token, decode over the `--new` tokens after it. Without BUNDLE the default model is measured,
as its own recipe stores it and with symmetric int4 everywhere. The first other engine given is what the ratios are
against, else the first bundle.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

import numpy as np

from benchmarks import engines, models, tables
from benchmarks.engines import Command, Rates
from edge.runtime import RUNTIMES, support

_PEERS = ("ortgenai", "llama")
_LOWEST_ID = 10  # below are control tokens
_PAUSE_S = 0.25


def main() -> int:
    options = _parser().parse_args()
    commands = _commands(options)
    prompts = np.random.default_rng(options.seed).integers(
        _LOWEST_ID, options.ids, (options.rounds + 1, options.prompt)
    )
    context = options.context or options.prompt + options.new + 1
    baseline = next((c for c in commands if c.module != "benchmarks.workers.dsedge"), commands[0]).name
    machine = tables.machine()
    try:
        with contextlib.ExitStack() as stack:
            workers = [stack.enter_context(command.start(options.threads, context)) for command in commands]
            versions = {worker.name: worker.engine for worker in workers}
            samples = engines.measure(workers, prompts.tolist(), options.new, pause_s=_PAUSE_S)
    except engines.WorkerError as error:
        print(error, file=sys.stderr)
        return 1
    rates = engines.compare(samples, baseline, options.prompt, options.new)
    title = f"{options.prompt} + {options.new} tokens, {options.threads} threads, medians of {options.rounds} rounds"
    tables.show([_table(title, rates, versions, (f"Ratios are to {baseline}.", machine))], markdown=options.markdown)
    return 0


def _commands(options: argparse.Namespace) -> list[Command]:
    bundles: list[Path] = options.bundles or [
        models.default_bundle(recipe) for recipe in (models.EQUAL_BITS, models.DEFAULT_RECIPE)
    ]
    found = [
        Command(f"{path.stem}, {runtime}", sys.executable, "benchmarks.workers.dsedge", path, runtime)
        for path in bundles
        for runtime in options.runtime or _usable()
    ]
    for peer in _PEERS:
        model = getattr(options, peer)
        if model is not None:
            python = getattr(options, f"{peer}_python")
            found.append(Command(f"{peer}: {model.name}", python, f"benchmarks.workers.{peer}", model))
    return found


def _usable() -> list[str]:
    """dsedge's backends that compute something and work here."""
    return [name for name in RUNTIMES if name != "scripted" and support(name).devices]


def _table(title: str, rates: list[Rates], versions: dict[str, str], notes: tuple[str, ...]) -> tables.Table:
    head = ("", "engine", "prefill tok/s", "decode tok/s", "prefill ratio", "decode ratio", "paired", "idle CPU ms")
    rows = tuple(
        (
            rate.name,
            versions[rate.name],
            f"{rate.prefill:.1f}",
            f"{rate.decode:.1f}",
            f"{rate.prefill_ratio:.3f}",
            f"{rate.decode_ratio:.3f}",
            f"{rate.prefill_paired:.3f} / {rate.decode_paired:.3f}",
            f"{rate.idle_cpu_s * 1000:.0f}",
        )
        for rate in rates
    )
    return tables.Table(title, head, rows, notes)


def _parser() -> argparse.ArgumentParser:
    parser = tables.parser(__doc__)
    parser.add_argument("bundles", metavar="BUNDLE", nargs="*", type=Path, help="a bundle's folder")
    parser.add_argument("--runtime", action="append", help="a backend of dsedge; repeatable [all that work here]")
    parser.add_argument("--ortgenai", type=Path, help="a folder of ONNX Runtime GenAI's model builder")
    parser.add_argument("--ortgenai-python", default=sys.executable, help="the interpreter that has onnxruntime-genai")
    parser.add_argument("--llama", type=Path, help="a GGUF file")
    parser.add_argument("--llama-python", default=sys.executable, help="the interpreter that has llama-cpp-python")
    parser.add_argument("--prompt", type=int, default=512, help="prompt tokens [512]")
    parser.add_argument("--new", type=int, default=128, help="tokens decoded after the first [128]")
    parser.add_argument("--context", type=int, help="tokens that caches hold [what is needed]")
    parser.add_argument("--threads", type=int, default=2, help="threads of each engine [2]")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds [5]")
    parser.add_argument("--ids", type=int, default=40_000, help="prompt ids are below this [40000]")
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    sys.exit(main())
