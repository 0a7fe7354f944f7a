"""Tokens to text while they arrive: no broken characters, no stop strings.

The deltas of a stream, joined, are exactly the tokenizer's decoding of all its tokens at once (cut before the stop
string, if one came). A token costs the same however long the answer is: only the tokens since the last settled text
are decoded; where a decoder minds what stands before them, behind the last settled token (a SentencePiece decoder drops
the space at the start of what it is given, so it must not be given a start that is none).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edge.tokenizer import Tokenizer

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_CHARACTER = 4  # bytes of the longest UTF-8 character, so at most as many tokens


class TextStream:
    """Turns pushed token ids into text that may be shown at once.

    `stopped` is the stop string that ended the text, or None. Of several, the one that is complete first counts; of
    several complete at the same character, the longest.
    """

    def __init__(
        self, tokenizer: Tokenizer, stop: Sequence[str] = (), *, spelled: Mapping[int, str] | None = None
    ) -> None:
        """`spelled` are control tokens that the text shows nevertheless: id → spelling."""
        self.stopped: str | None = None
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._spelled = dict(spelled or {})
        self._context: list[int] = []
        self._context_text = ""
        self._pending: list[int] = []  # tokens whose text may still change
        self._held = ""  # settled text that may be the start of a stop string

    def push(self, token: int) -> str:
        """The text that is certain now and was not before; empty after a stop string."""
        if self.stopped is not None:
            return ""
        if token in self._spelled:
            text = self._tokenizer.spell(self._context + self._pending)
            delta = self._settle(text, len(self._pending)) + self._spelled[token]
            self._stand_behind(token)
            return self._filter(delta)
        if self._tokenizer.is_silent(token):
            return ""
        self._pending.append(token)
        if token in self._tokenizer.byte_ids:
            return ""  # a run of byte tokens is decoded as a whole, when the run ends
        text = self._tokenizer.spell(self._context + self._pending)
        if self._tokenizer.byte_level and text.endswith(_REPLACEMENT):
            return self._filter(self._settle_head(text))
        return self._filter(self._settle(text, len(self._pending)))

    def finish(self) -> str:
        """The rest of the text, when no more tokens come: what was held back, and a character that stays broken."""
        if self.stopped is not None:
            return ""
        text = self._tokenizer.spell(self._context + self._pending)
        delta = self._filter(self._settle(text, len(self._pending)))
        held, self._held = self._held, ""
        return delta + held

    def _settle(self, text: str, count: int) -> str:
        """Take `text`, the decoding of the context and the first `count` pending tokens, as final; its new part."""
        delta = text[len(self._context_text) :]
        if count:
            self._stand_behind(self._pending[count - 1])
        del self._pending[:count]
        return delta

    def _stand_behind(self, token: int) -> None:
        """Decode what follows behind this settled token, where the decoder minds."""
        if self._tokenizer.contextual:
            self._context = [token]
            self._context_text = self._tokenizer.spell(self._context)

    def _settle_head(self, text: str) -> str:
        """New settled text where `text` ends in a character that is incomplete or broken; mostly none.

        A model that emits broken bytes for ever would keep everything pending. Only the last tokens can belong to an
        incomplete character, so text before them is settled at the first place where a character, broken or not, ends:
        where decoding both sides apart changes nothing.
        """
        last = len(self._pending) - _CHARACTER
        if last < _CHARACTER:
            return ""
        for count in range(last, last - _CHARACTER, -1):
            head = self._tokenizer.spell(self._context + self._pending[:count])
            if head + self._tokenizer.spell(self._pending[count:]) == text:
                return self._settle(head, count)
        return ""

    def _filter(self, delta: str) -> str:
        """The part of held text and `delta` that no stop string can claim any more."""
        if not self._stop or not delta:
            return delta
        text = self._held + delta
        found = [(start + len(stop), start, stop) for stop in self._stop if (start := text.find(stop)) >= 0]
        if found:
            _, start, self.stopped = min(found)
            self._held = ""
            return text[:start]
        keep = len(text) - max(overlap(text, stop) for stop in self._stop)
        self._held = text[keep:]
        return text[:keep]


def overlap(text: str, mark: str) -> int:
    """How long the longest end of `text` is that starts `mark` and is not the whole of it."""
    return next((size for size in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:size])), 0)
