"""Work on many samples at once whose results do not depend on how many threads there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from typing import TypeVar

import numpy as np

from exporters.quant.method import Array

Item = TypeVar("Item")
Result = TypeVar("Result")
_AHEAD = 8
_STRIPE = 256  # columns of a moment


def ordered(pool: Executor, call: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Results in order, a few being worked on at a time."""
    ahead: list[Future[Result]] = []
    try:
        for item in items:
            ahead.append(pool.submit(call, item))
            if len(ahead) > _AHEAD:
                yield ahead.pop(0).result()
        while ahead:
            yield ahead.pop(0).result()
    finally:  # an interrupt waits for what runs, not for what was to come
        for future in ahead:
            future.cancel()


def add_moment(pool: Executor, total: Array | None, x: Array) -> Array:
    """total + xᵀ · x, stripe by stripe, so that nothing else has its size; zeros for None."""
    width = x.shape[1]
    found = np.zeros((width, width), np.float32) if total is None else total

    def fill(start: int) -> None:
        stop = min(start + _STRIPE, width)
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite shows in the moment
            found[start:stop, start:] += x[:, start:stop].T @ x[:, start:]
        found[stop:, start:stop] = found[start:stop, stop:].T

    for _ in pool.map(fill, range(0, width, _STRIPE)):
        pass
    return found
