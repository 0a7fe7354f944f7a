"""What a step computes: a token of every answer that decodes, and a chunk of those whose prompts are not through."""

from __future__ import annotations

from collections.abc import Sequence

from edge.engine.answer import Answer

MOST_RUNNING = 16  # sequences in one pass


def choose(running: Sequence[Answer], chunk: int, turn: int) -> list[tuple[Answer, int]]:
    """Answers of a step, those that came first first, and how many tokens of each.

    Rows of prompts are at most `chunk` together, so that nobody's next token waits longer than that. In each step
    another prompt, number `turn` of those that wait, is the first to get them; the rest goes to the next ones, unless
    it would be a sliver of their work.
    """
    if len(running) > MOST_RUNNING:  # paused ones have come back: by turns
        start = turn * MOST_RUNNING % len(running)
        running = ([*running[start:], *running[:start]])[:MOST_RUNNING]
    left = {answer.number: answer.left for answer in running}
    counts = {number: 1 for number, count in left.items() if count == 1}
    if len(counts) == len(running):
        return [(answer, 1) for answer in running]
    prompts = [answer for answer in running if left[answer.number] > 1]
    first = turn % len(prompts)
    budget = chunk
    for answer in prompts[first:] + prompts[:first]:
        assert answer.session is not None
        if budget < max(1, min(left[answer.number], chunk // 4)):
            continue
        count = min(answer.session.cache.portion(left[answer.number]), budget)
        counts[answer.number] = count
        budget -= count
    return [(answer, counts[answer.number]) for answer in running if answer.number in counts]
