"""Tokens to text while they arrive: no broken characters, no stop strings.

The deltas of a stream, joined, are the text of all its tokens (cut before the stop string, if one came): their bytes
read as UTF-8, with one U+FFFD for each sequence of bytes that begins no character or breaks one off. Text is given out
as soon as it is whole; bytes that may yet become a character are at most three. A token costs the same however long
the answer is: where a decoder minds what stands before a token (a SentencePiece decoder drops the space at the start of
what it is given, so it must not be given a start that is none), it is decoded behind the one before it.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from typing import Protocol

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
        plain = tokenizer.byte_level and not tokenizer.contextual
        self._reader: _Reader = _Bytes(tokenizer) if plain else _Pieces(tokenizer)
        self._held = ""  # settled text that may be the start of a stop string

    def push(self, token: int) -> str:
        """The text that is certain now and was not before; empty after a stop string."""
        if self.stopped is not None:
            return ""
        if token in self._spelled:
            return self._filter(self._reader.flush(behind=token) + self._spelled[token])
        if self._tokenizer.is_silent(token):
            return ""
        return self._filter(self._reader.read(token))

    def finish(self) -> str:
        """The rest of the text, when no more tokens come: what was held back, and a character that stays broken."""
        if self.stopped is not None:
            return ""
        delta = self._filter(self._reader.flush())
        held, self._held = self._held, ""
        return delta + held

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


class _Reader(Protocol):
    def read(self, token: int) -> str:
        """The text that is whole with this token and was not before."""
        ...

    def flush(self, *, behind: int | None = None) -> str:
        """The text of what was held back, nothing more being able to complete it. `behind` is the token that follows
        and is shown otherwise."""
        ...


class _Bytes:
    """A byte-level vocabulary: each token is some bytes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def read(self, token: int) -> str:
        return self._decoder.decode(self._tokenizer.raw(token))

    def flush(self, *, behind: int | None = None) -> str:
        return self._decoder.decode(b"", final=True)


class _Pieces:
    """A vocabulary of pieces of text, perhaps with tokens for single bytes among them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._context: list[int] = []
        self._context_text = ""
        self._pending: list[int] = []  # tokens whose text may still change
        self._bytes = b""  # of a character that is not whole: those of the pending tokens

    def read(self, token: int) -> str:
        if token in self._tokenizer.byte_ids:
            return self._read_byte(token)
        broken = self._flush_bytes()
        self._pending.append(token)
        text = self._tokenizer.spell(self._context + self._pending)
        if self._tokenizer.byte_level and text.endswith(_REPLACEMENT):
            return broken + self._settle_head(text)
        return broken + self._settle(text, len(self._pending))

    def flush(self, *, behind: int | None = None) -> str:
        broken = self._flush_bytes()
        text = self._tokenizer.spell(self._context + self._pending)
        delta = broken + self._settle(text, len(self._pending))
        if behind is not None:
            self._stand_behind(behind)
        return delta

    def _read_byte(self, token: int) -> str:
        """The library decodes a run of byte tokens as a whole, and all of it as broken if one byte is."""
        rest = (
            ""
            if self._bytes
            else self._settle(self._tokenizer.spell(self._context + self._pending), len(self._pending))
        )
        self._pending.append(token)
        self._bytes += bytes([self._tokenizer.byte_ids[token]])
        text, used = codecs.utf_8_decode(self._bytes, "replace", False)
        if not used:
            return rest
        if not self._context and _REPLACEMENT not in text:
            text = self._tokenizer.spell(self._pending)  # which may drop a space at the start
        self._bytes = self._bytes[used:]
        self._stand_behind(self._pending[used - 1])
        del self._pending[:used]
        return rest + text

    def _flush_bytes(self) -> str:
        if not self._bytes:
            return ""
        broken, self._bytes = self._bytes.decode("utf-8", "replace"), b""
        self._stand_behind(self._pending[-1])
        self._pending.clear()
        return broken

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


def overlap(text: str, mark: str) -> int:
    """How long the longest end of `text` is that starts `mark` and is not the whole of it."""
    return next((size for size in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:size])), 0)
