"""Where a text spells control tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping


class ControlTokens:
    """Control tokens (`ids`: spelling → id) and where text spells them."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self.ids = dict(ids)
        lengths: dict[str, set[int]] = {}
        for text in self.ids:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}
        self._first = re.compile(f"[{''.join(map(re.escape, lengths))}]" if lengths else "(?!)")

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """(start, end) of each spelling, left to right, the longest at each place, as the tokenizers library does."""
        done = 0
        for match in self._first.finditer(text):
            start = match.start()
            if start < done:
                continue
            for length in self._lengths[text[start]]:
                found = text[start : start + length]
                if found in self.ids:
                    done = start + len(found)  # at the end of the text the slice is shorter
                    yield start, done
                    break
