"""Tokens of a vocabulary against the rest of its tokenizer: how they are shown, and which end a turn."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, pre_tokenizers

from edge.errors import CheckpointError
from exporters.checkpoint import TokenizerFiles
from exporters.checkpoint.enders import Enders
from exporters.checkpoint.marks import Rendered, turn_ends

_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
# Each kind of vocabulary writes the space before a word in its own way, which its decoder must know.
_SPACES = {"\u0120": "byte-level", "\u2581": "SentencePiece"}
_FEW = 20  # a vocabulary is of a kind if one in so many of its tokens starts with that kind's space
# UTF-8 has no such bytes (RFC 3629), so a token with one of their letters, which are themselves, is no part of a text.
_NO_BYTES = frozenset(map(chr, (0xC0, 0xC1, *range(0xF5, 0x100))))


def keep_text(text: str, tokenizer: Tokenizer) -> str:
    """The text of a tokenizer.json, and `tokenizer` what it says; changed only where an added token would be misread.

    A byte-level decoder reads every token as letters that stand for bytes, added tokens too, although these are found
    in text as they are written. DeepSeek's "ü" is such a token, and would be shown as the byte 0xFC, which is no
    character. There the decoder spells such tokens in bytes first.
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


def check_spelling(tokenizer: Tokenizer, path: Path) -> None:
    """Raise CheckpointError where the decoder does not know the vocabulary's space and would show its letter."""
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    for space, kind in _SPACES.items():
        words = sorted(token for token in vocabulary if token.startswith(space) and len(token) > 1)
        if words and len(words) * _FEW >= len(vocabulary):
            shown = tokenizer.decode([vocabulary[words[0]]] * 2, skip_special_tokens=False)
            if space in shown:
                raise CheckpointError(
                    f"{path}: the decoder shows {shown!r} for the token {words[0]!r} twice: the vocabulary is "
                    f"{kind} and the decoder is of another kind; take the tokenizer.json that the model was published "
                    "with"
                )


def add_turn_ends(enders: Enders, rendered: Iterable[Rendered], tokenizer: Tokenizer, bos: int | None) -> None:
    """Add the control tokens that a template writes behind an assistant's words; ordinary ones count if in brackets.

    A bos there begins what follows, and ends nothing unless the source says so.
    """
    added = tokenizer.get_added_tokens_decoder()
    tokens = {
        token.content: number
        for number, token in added.items()
        if token.special or (token.content[:1] in "<[" and token.content[-1:] in ">]")
    }
    for text, place in turn_ends(rendered, tokens).items():
        if tokens[text] != bos:
            enders.add(tokens[text], place)


def fit_rows(files: TokenizerFiles, rows: int, where: str) -> TokenizerFiles:
    """`files` without added tokens that have no row in an embedding of `rows`, which some models carry for others.

    Raises CheckpointError where such a token is one that the model needs: a piece of text, an end, a template's mark.
    """
    data = json.loads(files.tokenizer)
    tokenizer = Tokenizer.from_str(files.tokenizer)
    beyond = {token: index for token, index in tokenizer.get_vocab().items() if index >= rows}
    if not beyond:
        return files
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    pieces = tokenizer.get_vocab(with_added_tokens=False).keys() | files.special.values()
    templates = [text for text in (files.chat_template, *files.chat_templates.values()) if text]
    for token, index in sorted(beyond.items(), key=lambda item: item[1]):
        if token in pieces or token not in added or index in files.enders or any(token in text for text in templates):
            raise CheckpointError(
                f"{where}: token {token!r} has the id {index}, but the embedding has {rows} rows: the tokenizer "
                "belongs to another model"
            )
    data["added_tokens"] = [entry for entry in data["added_tokens"] if entry["id"] < rows]
    note = f"added tokens without a row in the embedding are left out: {', '.join(sorted(beyond))}"
    return replace(files, tokenizer=json.dumps(data, ensure_ascii=False), notes=(*files.notes, note))
