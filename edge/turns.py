"""Which turns of a conversation are still sent where a context cannot hold them all: the oldest go, each of them whole.

A turn begins with a message of the user and holds all that follows it: answers, calls of tools and their results. What
stands before the first turn, the system prompt, always stays, and so does the latest turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

Message = TypeVar("Message", bound=Mapping[str, Any])


def begins(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Where turns begin."""
    return [index for index, message in enumerate(messages) if message["role"] == "user"]


def dropped(
    messages: Sequence[Message], count: Callable[[Sequence[Message]], int], *, context: int, total: int, head: int
) -> int:
    """How many turns are to go so that the others leave a quarter of the context to the answer.

    `count` says how many tokens some messages have; all have `total`, of which `head` stand before the first turn.

    Turns go until they have a multiple of half the context: so what is sent begins alike for many turns, and is
    computed once. That is a rule of the messages alone, whoever asked for earlier answers, and when.
    """
    starts = begins(messages)
    over = total + context // 4 - context
    if over <= 0 or len(starts) < 2:
        return 0
    half = max(1, context // 2)
    wanted, gone = -(-over // half) * half, 0
    for index, (start, end) in enumerate(pairwise(starts)):
        if gone >= wanted:
            return index
        gone += count([*messages[: starts[0]], *messages[start:end]]) - head
    return len(starts) - 1
