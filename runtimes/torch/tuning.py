"""The chunk of a prompt that a device computes fastest, measured when a bundle is first opened on it."""

from __future__ import annotations

import time
from collections.abc import Callable

from edge import remembered
from edge.session import Session
from runtimes.torch import devices
from runtimes.torch.engine import TorchRuntime

KIND = "chunk"
_LEAST, _WORTH, _SECONDS = 64, 1.05, 1.0


def chunk_of(runtime: TorchRuntime, bundle: str, context: int) -> int:
    """The chunk for a bundle (its sum) on the runtime's device: remembered, or measured within about a second."""
    key = f"{devices.described(runtime.device)} {runtime.dtype} {bundle}"
    most = min(runtime.layout.chunk, context)
    found = remembered.recall(KIND, key)
    if not isinstance(found, int) or found < 1:
        session = Session(runtime)
        found = climb(lambda count: _seconds(session, count), most)
        session.close()
        remembered.remember(KIND, key, found)
    return min(found, most)


def climb(seconds: Callable[[int], float], most: int) -> int:
    """The chunk with the most tokens a second: doubled for as long as that gains enough, and time allows."""
    best, rate, spent = min(_LEAST, most), 0.0, 0.0
    count = best
    while count <= most and spent < _SECONDS:
        took = seconds(count)
        spent += took
        if count / took < rate * _WORTH:
            break
        best, rate, count = count, count / took, 2 * count
    return best


def _seconds(session: Session, count: int) -> float:
    """Of a forward of so many tokens; the one before it, of a shape that is new, is not counted."""
    tokens = [token % session.runtime.spec.vocab_size for token in range(count)]
    for _ in range(2):
        session.reset()
        start = time.perf_counter()
        session.step(tokens)
        took = time.perf_counter() - start
    return took
