"""How a conversation without an end does under the sliding policy: memory, perplexity, and prompts behind the window.

    python -m benchmarks.endurance --text FILE [BUNDLE]

The tokens of a text are decoded one by one, whatever the model would have said. At each mark the next tokens are
scored a second time from a cold start: a new sequence of the same first tokens and of those that the window holds. The
bars: the perplexity is at most 1.05 times that of the cold start, memory stays flat, and prompts behind the window are
read at half the rate of others at least.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import edge
from benchmarks import models, tables, wikitext
from edge.pipeline import Pipeline
from edge.runtime import Runtime
from edge.session import Session

BARS = "perplexity at most 1.05 × cold; prompts at least 0.5 × plain"


@dataclass(frozen=True, slots=True)
class Mark:
    """What was seen after so many tokens: perplexities of the next ones, resident bytes, seconds of processor time."""

    tokens: int
    warm: float
    cold: float
    resident: int
    seconds: float


def main() -> int:
    options = _parser().parse_args()
    machine = tables.machine()
    opened = edge.RuntimeOptions(
        runtime=options.runtime, threads=options.threads, context=options.context, policy="sliding", sequences=2
    )
    with edge.load(options.bundle or models.default_bundle(models.DEFAULT_RECIPE), opened) as pipeline:
        ids = pipeline.tokenizer.encode(wikitext.read(options.text))
        ids = ids[: options.tokens + options.scored]
        step = max(1, (len(ids) - options.scored) // options.marks)
        at = [step * (index + 1) for index in range(options.marks)]
        found = run(pipeline.runtime, ids, at, options.scored)
        plain, behind = prompt_rates(pipeline, ids, options.runs)
        name = f"{pipeline.bundle.path.stem}, {pipeline.runtime.name}"
    title = f"{name}: decoding under sliding, a context of {options.context}"
    rows = tuple(
        (str(mark.tokens), f"{mark.warm:.2f}", f"{mark.cold:.2f}", f"{mark.warm / mark.cold:.3f}",
         f"{mark.resident / 1e6:.0f}", f"{mark.tokens / mark.seconds:.0f}")
        for mark in found
    )  # fmt: skip
    head = ("tokens", "perplexity of the next", "from a cold window", "ratio", "resident MB", "tokens a CPU second")
    notes = (
        f"The next {options.scored} tokens. Prompts behind the window are read at {behind / plain:.2f} of the rate of "
        f"others (best of {options.runs} alternate runs, CPU time). Bars: {BARS}.",
        machine,
    )
    tables.show([tables.Table(title, head, rows, notes)], markdown=options.markdown)
    return 0


def run(runtime: Runtime, ids: Sequence[int], marks: Sequence[int], scored: int) -> list[Mark]:
    """Decode the ids one by one; what is seen at each mark. Raises NumericsError for logits that are not finite."""
    session = Session(runtime)
    found, seconds, logits = [], 0.0, np.zeros(0, np.float32)
    for mark in marks:
        began = time.process_time()
        for token in ids[len(session.tokens) : mark]:
            logits = session.step([token])
        seconds += time.process_time() - began
        copy = session.fork()
        warm = perplexity(copy, logits, ids[mark : mark + scored])
        copy.close()
        cold = Session(runtime, session.pools)
        (ring,) = runtime.layout.rings
        first = cold.feed([*ids[: ring.sinks], *ids[mark - ring.window : mark]])
        assert first is not None
        found.append(
            Mark(mark, warm, perplexity(cold, first, ids[mark : mark + scored]), status().get("VmRSS", 0), seconds)
        )
        _tell(found[-1])
        cold.close()
    return found


def perplexity(session: Session, logits: np.ndarray, ids: Sequence[int]) -> float:
    """Of ids behind a sequence whose latest logits these are, fed one by one."""
    total = 0.0
    for token in ids:
        shifted = logits.astype(np.float64) - logits.max()
        total += np.log(np.exp(shifted).sum()) - shifted[token]
        logits = session.step([token])
    return float(np.exp(total / len(ids)))


def prompt_rates(pipeline: Pipeline, ids: Sequence[int], runs: int) -> tuple[float, float]:
    """Tokens a second of processor time: of a prompt that fits the context, and of as many behind a full window."""
    runtime, context = pipeline.runtime, pipeline.runtime.layout.context
    rates: tuple[list[float], list[float]] = ([], [])
    for _ in range(runs):
        session = Session(runtime)
        for index, rate in enumerate(rates):
            part = ids[index * context : (index + 1) * context]
            began = time.process_time()
            session.feed(part)
            rate.append(context / (time.process_time() - began))
        session.close()
    return max(rates[0]), max(rates[1])


def status() -> dict[str, int]:
    """What Linux says of this process's memory, in bytes by its names; elsewhere nothing."""
    path = Path("/proc/self/status")
    lines = path.read_text(encoding="ascii").splitlines() if path.exists() else []
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith(" kB")}


def _tell(mark: Mark) -> None:
    print(
        f"{mark.tokens}: {mark.warm:.3f} and cold {mark.cold:.3f}, {mark.resident / 1e6:.0f} MB, {mark.seconds:.0f} s",
        file=sys.stderr,
        flush=True,
    )


def _parser() -> argparse.ArgumentParser:
    parser = tables.parser(__doc__)
    parser.add_argument("bundle", metavar="BUNDLE", nargs="?", type=Path, help="a bundle's folder [the default model]")
    parser.add_argument("--text", type=Path, required=True, help="a long text, such as WikiText-2's test set")
    parser.add_argument("--runtime", default="auto", help="a backend of dsedge [auto]")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=100_000, help="how many are decoded [100000]")
    parser.add_argument("--marks", type=int, default=5, help="how often is looked [5]")
    parser.add_argument("--scored", type=int, default=512, help="tokens that are scored at a mark [512]")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=3)
    return parser


if __name__ == "__main__":
    sys.exit(main())
