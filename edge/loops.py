"""Whether an answer has run into a loop: the same few tokens over and over, as small models write when greedy."""

from __future__ import annotations

from collections.abc import Sequence

SPAN = 256  # tokens of the same repetition that count as a loop
LONGEST = 64  # the longest period looked for, so that a loop has gone round four times at least
_EVERY = 32  # searching at every token would cost as much as a small model's step


def is_loop(tokens: Sequence[int]) -> bool:
    """Whether the latest SPAN tokens repeat one period of at most LONGEST. Looks at every 32nd token only.

    A rule of the tokens alone: where an answer ends depends on neither time nor chunks.
    """
    if len(tokens) < SPAN or len(tokens) % _EVERY:
        return False
    tail = list(tokens[-SPAN:])
    return any(tail[period:] == tail[:-period] for period in range(1, LONGEST + 1))
