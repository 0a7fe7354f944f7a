"""Copying: numbers and identifiers that a text has had before, which a model can repeat exactly or get wrong.

A span is counted where it, or rather the same text, stands earlier in its sample. A model copies it if at each of its
tokens, given everything before, the token is the most likely one: then answering greedily would have written it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from edge.tokenizer import Tokenizer
from exporters.distance import FIRST, Ids

# At least two digits, with what stands inside dates, times and prices; or a name with an underscore, a digit or a
# capital inside.
_SPAN = re.compile(
    r"\d[\d.,:/-]*\d|(?<!\w)(?:[A-Za-z]\w*_\w+|_\w{2,}|[A-Za-z]+\d\w*|[a-z]+[A-Z]\w*|[A-Z][a-z]+[A-Z]\w*)(?!\w)",
    re.ASCII,
)
Span = tuple[int, int]
_BLOCK = 64  # tokens


def repeated(tokenizer: Tokenizer, ids: Sequence[int]) -> list[Span]:
    """The first token of each span and the one behind its last, of spans that begin at position 64 or later."""
    ends = _ends(tokenizer, ids)
    seen: set[str] = set()
    found: list[Span] = []
    for match in _SPAN.finditer(tokenizer.decode(ids)):
        first, last = np.searchsorted(ends, [match.start(), match.end() - 1], side="right").tolist()
        if match[0] in seen and first >= FIRST and last < len(ids):
            found.append((first, last + 1))
        seen.add(match[0])
    return found


def _ends(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """Where each token's text ends in the text of all, in characters.

    What a token spells may depend on those before it, so a block of tokens is spelled behind the last one before it.
    """
    ends: list[int] = []
    for start in range(0, len(ids), _BLOCK):
        anchor = ids[start - 1 : start] if start else []
        before = (ends[-1] if ends else 0) - len(tokenizer.decode(anchor))
        block = [*anchor, *ids[start : start + _BLOCK]]
        ends += [before + len(tokenizer.decode(block[:stop])) for stop in range(len(anchor) + 1, len(block) + 1)]
    return ends


def copied(spans: Sequence[Span], ids: Sequence[int], top: Ids) -> int:
    """How many spans are predicted whole; `top` is the most likely token after each token of the sample."""
    hits = top[:-1] == np.asarray(ids[1:])
    return sum(bool(hits[first - 1 : stop - 1].all()) for first, stop in spans)
