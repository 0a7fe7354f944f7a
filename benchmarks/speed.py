"""Prefill and decode speed of dsedge bundles, side by side with other engines and with what the machine allows.

    python -m benchmarks.speed
    python -m benchmarks.speed --ortgenai DIR --ortgenai-python PYTHON --llama FILE.gguf --llama-python PYTHON
    python -m benchmarks.speed --threads 1 --threads 2                     also what a second thread brings
    python -m benchmarks.speed --prompt 128 --prompt 512 --prompt 2048     also how the cost of a prompt grows
    python -m benchmarks.speed --runtime native --kv-dtype auto --kv-dtype int8 --prompt 7900 --new 64
    python -m benchmarks.speed --large --runtime native --prompt 128 --new 32

Every engine loads its model in a process of its own, one for each number of threads, and waits there. In each round
all of them run the same fresh random prompt, one after the other, never two at a time; one round warms up, the medians
are over the others. Prefill is measured to the first token (TTFT), decode over the `--new` tokens after it. Without
BUNDLE the default model is measured, as its own recipe stores it and with symmetric int4 everywhere. The first other
engine given is what the ratios are against, else the first bundle.

After each round as many threads only read memory. "Of the limit" compares the bytes that decoding must read in a
second with theirs: for each token all weights, and the keys and values of the prompt and of half of the new tokens.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np

from benchmarks import engines, limits, models, speed_tables, tables
from benchmarks.engines import Command, Worker
from benchmarks.speed_tables import Group
from edge.kv import KvDtype
from edge.runtime import EXPLICIT, RUNTIMES, support

_PEERS = {
    "ortgenai": ("a folder of ONNX Runtime GenAI's model builder", "onnxruntime-genai"),
    "llama": ("a GGUF file", "llama-cpp-python"),
    "openvino": ("a folder of optimum-intel's export", "openvino-genai"),
}
_LOWEST_ID = 10  # below are control tokens
_PAUSE_S = 0.25


def main() -> int:
    options = _parser().parse_args()
    options.prompt, options.threads = options.prompt or [512], options.threads or [2]
    commands = _commands(options)
    context = options.context or max(options.prompt) + options.new + 1
    machine = tables.machine()
    try:
        with contextlib.ExitStack() as stack:
            workers = [stack.enter_context(c.start(n, context)) for n in options.threads for c in commands]
            groups = list(_measure(commands, workers, options))
    except engines.WorkerError as error:
        print(error, file=sys.stderr)
        return 1
    baseline = commands[_baseline(commands)].name
    found = [speed_tables.speed(group, options.rounds, baseline) for group in groups]
    found.append(speed_tables.machine_limits(groups))
    if len(options.threads) > 1:
        found.append(speed_tables.more_threads(groups))
    if len(options.prompt) > 1:
        found.append(speed_tables.longer_prompts(groups))
    found[-1] = replace(found[-1], notes=(*found[-1].notes, machine))
    tables.show(found, markdown=options.markdown)
    return 0


def _measure(commands: Sequence[Command], workers: Sequence[Worker], options: argparse.Namespace) -> Iterator[Group]:
    """The groups, prompt by prompt; one prompt's are measured in the same rounds."""
    random, reader = np.random.default_rng(options.seed), limits.Reader()
    for length in options.prompt:
        prompts = random.integers(_LOWEST_ID, options.ids, (options.rounds + 1, length)).tolist()
        samples, bandwidths = [], []
        for found in engines.rounds(workers, prompts, options.new, pause_s=_PAUSE_S):
            samples.append(found)
            bandwidths.append([reader.rate(threads) for threads in options.threads])
        runs = list(zip(*samples, strict=True))
        for index, threads in enumerate(options.threads):
            mine = slice(index * len(commands), (index + 1) * len(commands))
            rates = engines.compare(runs[mine], _baseline(commands), length, options.new)
            bandwidth = statistics.median(rate[index] for rate in bandwidths)
            yield Group(length, options.new, threads, commands, workers[mine], rates, bandwidth)


def _commands(options: argparse.Namespace) -> list[Command]:
    bundles: list[Path] = options.bundles
    if options.large:
        bundles = [*bundles, models.large_bundle()]
    bundles = bundles or [models.default_bundle(recipe) for recipe in (models.EQUAL_BITS, models.DEFAULT_RECIPE)]
    found = [
        Command(
            f"{path.stem}, {runtime}" + (f", {dtype} KV" if dtype != "auto" else ""),
            sys.executable, "benchmarks.workers.dsedge", path, runtime, dtype,
        )
        for path in bundles
        for runtime in options.runtime or _usable()
        for dtype in options.kv_dtype or ["auto"]
    ]  # fmt: skip
    for peer in _PEERS:
        python, module = getattr(options, f"{peer}_python"), f"benchmarks.workers.{peer}"
        found += [Command(f"{peer}: {model.name}", python, module, model) for model in getattr(options, peer)]
    return found


def _baseline(commands: Sequence[Command]) -> int:
    """What ratios are to: the first other engine, else the first bundle."""
    return next((index for index, command in enumerate(commands) if not command.runtime), 0)


def _usable() -> list[str]:
    """dsedge's backends that compute something and work here."""
    return [name for name in RUNTIMES if name not in EXPLICIT and support(name).devices]


def _parser() -> argparse.ArgumentParser:
    parser = tables.parser(__doc__)
    parser.add_argument("bundles", metavar="BUNDLE", nargs="*", type=Path, help="a bundle's folder")
    parser.add_argument(
        "--large", action="store_true", help="also a bundle of Qwen2.5-7B's shape, made at first (20 GB)"
    )
    parser.add_argument(
        "--runtime", action="append", choices=list(RUNTIMES), help="a backend; repeatable [all that work here]"
    )
    parser.add_argument(
        "--kv-dtype", action="append", choices=get_args(KvDtype), help="how keys and values are kept; repeatable [auto]"
    )
    for peer, (model, package) in _PEERS.items():
        parser.add_argument(
            f"--{peer}", type=Path, metavar="MODEL", action="append", default=[], help=f"{model}; repeatable"
        )
        parser.add_argument(
            f"--{peer}-python", default=sys.executable, metavar="PYTHON", help=f"the interpreter that has {package}"
        )
    parser.add_argument("--prompt", type=int, action="append", help="prompt tokens; repeatable [512]")
    parser.add_argument("--new", type=int, default=128, help="tokens decoded after the first [128]")
    parser.add_argument("--context", type=int, help="tokens that caches hold [what is needed]")
    parser.add_argument("--threads", type=int, action="append", help="threads of each engine; repeatable [2]")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds [5]")
    parser.add_argument("--ids", type=int, default=40_000, help="prompt ids are below this [40000]")
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    sys.exit(main())
