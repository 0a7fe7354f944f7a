"""Ordinary added tokens whose text a byte-level decoder would lose.

A byte-level decoder reads every token as letters that stand for bytes, added tokens too, although these are found in
text as they are written. DeepSeek's "ü" is such a token, and would be shown as the byte 0xFC, which is no character.
"""

from __future__ import annotations

import json
import re
from typing import Any

from tokenizers import Tokenizer, decoders, pre_tokenizers

_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
# UTF-8 has no such bytes (RFC 3629), so a token with one of their letters, which are themselves, is no part of a text.
_NO_BYTES = frozenset(map(chr, (0xC0, 0xC1, *range(0xF5, 0x100))))


def keep_text(text: str, tokenizer: Tokenizer) -> str:
    """The text of a tokenizer.json, and `tokenizer` what it says; changed only where an added token would be misread.

    There the decoder spells such tokens in bytes first.
    """
    decoder = tokenizer.decoder
    if not isinstance(decoder, decoders.ByteLevel):
        return text
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values() if not token.special]
    misread = [token for token in added if not _NO_BYTES.isdisjoint(token) and decoder.decode([token]) != token]
    if not misread:
        return text
    data = json.loads(text)
    data["decoder"] = {"type": "Sequence", "decoders": [*map(_spell, misread), data["decoder"]]}
    return json.dumps(data, ensure_ascii=False)


def _spell(token: str) -> dict[str, Any]:
    """A decoder's step: this token, and none that merely contains it, becomes the letters of its bytes."""
    letters = "".join(piece for piece, _ in _BYTES.pre_tokenize_str(token))
    return {"type": "Replace", "pattern": {"Regex": rf"\A{re.escape(token)}\z"}, "content": letters}
