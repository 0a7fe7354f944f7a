"""Greedy answers of one model, and where another one would have said something else.

The other model need not answer itself: it reads the first one's answer, and up to the first token that is not its own
most likely one its answer is the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from exporters.distance import Logits
from exporters.report.models import CHUNK, Model

PROMPT, TOKENS = 64, 64  # tokens


def answer(model: Model, prompt: Sequence[int], count: int, ends: Sequence[int] = ()) -> list[int]:
    """At most `count` tokens, up to an end token and with it."""
    model.start()
    token = int(feed(model, prompt)[-1].argmax())
    made = [token]
    while len(made) < count and token not in ends:
        token = int(model.run([token])[-1].argmax())
        made.append(token)
    return made


def agreed(model: Model, prompt: Sequence[int], answered: Sequence[int]) -> int:
    """How many tokens of an answer to a prompt come before the first that is not the model's most likely one."""
    model.start()
    ids = [*prompt, *answered]
    top = feed(model, ids[:-1], keep=len(answered)).argmax(axis=1)
    wrong = np.flatnonzero(top != np.asarray(answered))
    return int(wrong[0]) if len(wrong) else len(answered)


def feed(model: Model, ids: Sequence[int], keep: int = 1) -> Logits:
    """Run ids in chunks; the logits of the last `keep` of them, [keep, vocab]."""
    kept: list[Logits] = []
    for start in range(0, len(ids), CHUNK):
        part = ids[start : start + CHUNK]
        logits = model.run(part)
        kept.append(logits[max(0, len(ids) - keep - start) :])
    return np.concatenate(kept)
