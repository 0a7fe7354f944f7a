"""How much one rendering may do. Every operation of a template is paid for before it is carried out.

A step is about the time of evaluating one node of the syntax tree. What an operation makes costs a step for 8
characters or for one element, what it only reads costs a step for 64 characters: so the steps bound the time, the
output and all the memory that values can take, whatever a template does, on every platform and in every thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, ItemsView, Iterator, KeysView, ValuesView
from contextlib import contextmanager
from typing import Any

STEPS = 4_000_000  # a template in use takes some hundreds for a message
SECONDS = 20.0  # on a machine so slow that the steps take longer
_DEPTH = 100  # of lists in lists: comparing, printing and hashing recurse
_CALL = 20  # steps of a call of a macro
_CALLS = 60  # of macros and loops in each other
_BITS = 16_384  # of a whole number
_LOOK = 20_000  # steps between two looks at the clock
_VIEWS = (ItemsView, KeysView, ValuesView)
_CONTAINERS = (list, tuple, dict, *_VIEWS)


class LimitError(Exception):
    """A template that would do more than a chat template has to do."""


class CancelledError(Exception):
    """Nobody waits for the text any more."""


class Work:
    """What is left to do for one rendering. Raises LimitError where that is not enough."""

    __slots__ = ("_calls", "_cancelled", "_look", "_until", "left")

    def __init__(self, steps: int = STEPS, *, cancelled: Callable[[], bool] | None = None) -> None:
        self.left = steps
        self._look = steps - _LOOK
        self._until = time.monotonic() + SECONDS
        self._cancelled = cancelled
        self._calls = 0

    def spend(self, steps: int) -> None:
        """Pay for an operation. Raises CancelledError if the rendering was cancelled."""
        self.left -= steps
        if self.left < self._look:
            self._look = self.left - _LOOK
            if self.left < 0:
                raise LimitError("it does far more work than a chat template has to do")
            if time.monotonic() > self._until:
                raise LimitError(f"it takes longer than {SECONDS:.0f} seconds")
            if self._cancelled is not None and self._cancelled():
                raise CancelledError

    def make(self, characters: int) -> None:
        """Pay for a string of that length."""
        if characters >= 8:
            self.spend(characters >> 3)

    def read(self, value: Any) -> None:
        """Pay for looking at all of a value, as comparing, hashing and printing do."""
        if isinstance(value, str):
            if len(value) >= 64:
                self.spend(len(value) >> 6)
        elif isinstance(value, _CONTAINERS):
            self.measure(value)

    def measure(self, value: Any) -> tuple[int, int]:
        """Pay for a copy of all that a value holds: (values within, how deep). A list that is in it twice is twice
        there."""
        count = deepest = 0
        stack = [(value, 0)]
        while stack:
            item, depth = stack.pop()
            count += 1
            if isinstance(item, str):
                self.make(len(item))
            elif isinstance(item, _CONTAINERS):
                if depth == _DEPTH:
                    raise LimitError(f"it nests lists more than {_DEPTH} deep")
                deepest = max(deepest, depth + 1)
                self.spend(len(item) + 1)
                stack += [(inner, depth + 1) for inner in item]
                if isinstance(item, dict):
                    stack += [(inner, depth + 1) for inner in item.values()]
        return count, deepest

    @contextmanager
    def call(self) -> Iterator[None]:
        """Around what a template calls, which may call itself."""
        self.spend(_CALL)
        self._calls += 1
        if self._calls > _CALLS:
            raise LimitError(f"it calls itself more than {_CALLS} deep")
        yield
        self._calls -= 1

    def check_bits(self, bits: int) -> None:
        """Raise LimitError for a whole number of so many bits."""
        if bits > _BITS:
            raise LimitError(f"it computes with numbers of more than {_BITS} bits")
