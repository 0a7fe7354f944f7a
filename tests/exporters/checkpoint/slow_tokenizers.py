"""Tokenizers written as their rules are stated, one step at a time: what the fast ones must agree with.

They share nothing with `exporters` or the tokenizers library: splitting is the `regex` module's, merging is a search.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import regex


def pieces(patterns: Sequence[str], text: str) -> list[str]:
    """Each pattern in turn cuts every piece so far: a match is a piece, and so is what lies between matches."""
    found = [text]
    for pattern in patterns:
        rule = regex.compile(pattern)
        found = [part for piece in found for part in _cut(rule, piece)]
    return found


def _cut(rule: Any, piece: str) -> list[str]:
    marks = [0, *(mark for match in rule.finditer(piece) if match.group() for mark in match.span()), len(piece)]
    return [piece[start:end] for start, end in pairwise(marks) if start < end]


def own_rule(own: Sequence[str]) -> Any:
    """Where text holds one of these, the longest at each place."""
    return regex.compile("|".join(map(regex.escape, sorted(own, key=len, reverse=True))) or "(?!)")


def byte_letters() -> list[str]:
    """GPT-2's letter of each byte: printable bytes are themselves, the others get letters from U+0100 on."""
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in shown]
    return [chr(byte) if byte in shown else chr(0x100 + others.index(byte)) for byte in range(256)]


class ByteLevel:
    """Byte-level BPE: within a piece, the pair of neighbours with the earliest merge is joined until none is left."""

    def __init__(
        self,
        vocab: Mapping[str, int],
        merges: Sequence[tuple[str, str]],
        *,
        patterns: Sequence[str],
        form: str | None = None,
        whole_words: bool = False,
        own: Sequence[str] = (),
    ) -> None:
        """`form` is a Unicode normal form; `whole_words` takes a piece that is a token without merging.

        `own` are added tokens: cut out first.
        """
        self.vocab = vocab
        self.ranks = {tuple(pair): rank for rank, pair in enumerate(merges)}
        self.patterns = patterns
        self.form = form
        self.whole_words = whole_words
        self.own = own_rule(own)
        self.letters = byte_letters()

    def normalize(self, text: str) -> str:
        return unicodedata.normalize(self.form, text) if self.form else text

    def encode(self, text: str) -> list[int]:
        return [token for part in _cut(self.own, text) for token in self._part(part)]

    def _part(self, text: str) -> list[int]:
        if self.own.fullmatch(text):
            return [self.vocab[text]]
        return [token for piece in pieces(self.patterns, self.normalize(text)) for token in self._merge(piece)]

    def _merge(self, piece: str) -> list[int]:
        symbols = [self.letters[byte] for byte in piece.encode()]
        if self.whole_words and "".join(symbols) in self.vocab:
            return [self.vocab["".join(symbols)]]
        while True:
            known = [(self.ranks[pair], at) for at, pair in enumerate(pairwise(symbols)) if pair in self.ranks]
            if not known:
                return [self.vocab[symbol] for symbol in symbols]
            _, at = min(known)
            symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]


class SentencePiece:
    """SentencePiece BPE: the neighbours whose joint piece scores highest are joined, leftmost first.

    `own` are user-defined pieces: cut out first, the longest at each place. A character without a piece is its bytes,
    whose ids follow `byte_start`.
    """

    def __init__(
        self,
        ids: Mapping[str, int],
        scores: Mapping[str, float],
        *,
        byte_start: int,
        prefix: str,
        own: Sequence[str] = (),
    ) -> None:
        self.ids = ids
        self.scores = scores
        self.byte_start = byte_start
        self.prefix = prefix
        self.own = own_rule(own)

    def encode(self, text: str) -> list[int]:
        return [token for part in _cut(self.own, text) for token in self._part(part)]

    def _part(self, text: str) -> list[int]:
        if self.own.fullmatch(text):
            return [self.ids[text]]
        symbols = list(self.prefix + text.replace(" ", "\u2581"))
        while True:
            joined = [left + right for left, right in pairwise(symbols)]
            known = [(self.scores[piece], -at) for at, piece in enumerate(joined) if piece in self.scores]
            if not known:
                break
            at = -max(known)[1]
            symbols[at : at + 2] = [joined[at]]
        spelled = [[self.ids[s]] if s in self.ids else [self.byte_start + byte for byte in s.encode()] for s in symbols]
        return [token for tokens in spelled for token in tokens]
