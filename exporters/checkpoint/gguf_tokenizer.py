"""A tokenizer.json rebuilt from the tokenizer.ggml.* metadata of a GGUF file.

Two kinds: "gpt2", byte-level BPE, where `tokenizer.ggml.pre` names how text is split before merging (see
`pretokenizers`), and "llama", SentencePiece's BPE with byte fallback, whose merges follow from the scores.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from edge.errors import CheckpointError, UnsupportedError
from exporters.checkpoint import TokenizerFiles
from exporters.checkpoint.added_tokens import add_turn_ends, check_spelling, keep_text
from exporters.checkpoint.enders import Enders, Notes, read_ids
from exporters.checkpoint.folder_tokenizer import load_tokenizer
from exporters.checkpoint.marks import find_marks, render
from exporters.checkpoint.pretokenizers import choose_splitting
from exporters.checkpoint.templates import DEFAULT, from_metadata
from exporters.checkpoint.white_space import find_swallowing

PREFIX = "tokenizer.ggml."
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4  # token_type; 5 is unused, 6 a byte
SPACE = "\u2581"  # what SentencePiece writes for a space
SPECIAL = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def rebuild_tokenizer(path: Path, metadata: Mapping[str, Any]) -> TokenizerFiles:
    """The tokenizer of a GGUF file.

    Raises CheckpointError for missing or contradictory components, an unknown way to split text and a template that
    is not valid; UnsupportedError for a kind of tokenizer that cannot be rebuilt.
    """
    notes = Notes()
    reader = _Reader(path, metadata, notes)
    tokens, types = reader.tokens()
    ids = {name: reader.token_id(key, len(tokens)) for name, key in SPECIAL.items()}
    special = {name: tokens[index] for name, index in ids.items() if index is not None}
    ends = {key: reader.token_id(key, len(tokens)) for key in END_KEYS}
    _name_control_tokens(types, [ids["bos_token"], *ends.values()])
    components, add_bos = _components(reader, tokens, types)
    add_bos, bos = reader.flag("add_bos_token", add_bos), ids["bos_token"]
    if add_bos and bos is None:
        raise CheckpointError(f"{path}: a BOS token is to be added but {PREFIX}bos_token_id does not say which")
    templates = from_metadata(path, metadata)
    rendered = render(str(path), templates, special, notes)
    _type_marks(load_tokenizer(_written([], components), path), types, find_marks(rendered), notes)
    added = _added_tokens(reader, tokens, types)
    if add_bos and bos is not None:
        components["post_processor"] = _bos_first(tokens[bos], bos)
    text = _written(added, components)
    tokenizer = load_tokenizer(text, path)
    _check(path, tokenizer, tokens)
    check_spelling(tokenizer, path)
    enders = Enders()
    for key, token in ends.items():
        enders.add(token, PREFIX + key)
    add_turn_ends(enders, rendered, tokenizer, bos)
    enders.note_none(notes)
    return TokenizerFiles(
        tokenizer=keep_text(text, tokenizer),
        chat_template=templates.pop(DEFAULT, None),
        bos=bos,
        special=special,
        add_bos=add_bos,
        enders=enders.all(),
        chat_templates=templates,
        notes=notes.all(),
    )


def _written(added: list[dict[str, Any]], components: Mapping[str, Any]) -> str:
    """The text of a tokenizer.json."""
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, **components}
    return json.dumps(whole, ensure_ascii=False)


def _name_control_tokens(types: np.ndarray[Any, Any], named: list[int | None]) -> None:
    """Tokens that the metadata names as bos or an end are control tokens, whatever their type says."""
    for index in named:
        if index is not None and types[index] == NORMAL:
            types[index] = CONTROL


def _type_marks(tokenizer: Tokenizer, types: np.ndarray[Any, Any], marks: set[str], notes: Notes) -> None:
    """Mend the types of tokens that a template writes as marks and that the file calls ordinary text.

    `tokenizer` has no added tokens. A piece of ordinary text that the model itself puts together is left alone. Tags
    in pairs, such as <think> and </think>, stay visible in text; all others become control tokens.
    """
    mended = []
    for mark in sorted(marks):
        index = tokenizer.token_to_id(mark)
        if index is None or types[index] != NORMAL or tokenizer.encode(mark, add_special_tokens=False).ids == [index]:
            continue
        pair = f"<{mark[2:]}" if mark.startswith("</") else f"</{mark[1:]}"
        tag = mark.startswith("<") and tokenizer.token_to_id(pair) is not None
        types[index] = USER_DEFINED if tag else CONTROL
        mended.append(mark)
    if mended:
        notes.add(f"the chat template's marks {', '.join(mended)} are tokens, which the file says are ordinary text")


def _added_tokens(reader: _Reader, tokens: list[str], types: np.ndarray[Any, Any]) -> list[dict[str, Any]]:
    """The entries of a tokenizer.json for control and user-defined tokens."""
    chosen = np.flatnonzero((types == CONTROL) | (types == USER_DEFINED)).tolist()
    swallowing = find_swallowing(reader.path, reader.metadata.get("general.architecture"), tokens)
    return [
        {
            "id": index,
            "content": tokens[index],
            "single_word": False,
            **swallowing.flags(tokens[index]),
            "normalized": False,
            "special": bool(types[index] == CONTROL),
        }
        for index in chosen
    ]


def _components(reader: _Reader, tokens: list[str], types: np.ndarray[Any, Any]) -> tuple[dict[str, Any], bool]:
    """What a tokenizer.json holds beside its added tokens, and whether BOS is added where the file does not say."""
    model = reader.text("model")
    if model == "gpt2":
        return _byte_level(reader, tokens)
    if model == "llama":
        return _sentencepiece(reader, tokens, types)
    raise UnsupportedError(f"{reader.path}: a tokenizer of kind {model!r} cannot be rebuilt; known are gpt2 and llama")


class _Reader:
    """Typed access to tokenizer.ggml.*."""

    def __init__(self, path: Path, metadata: Mapping[str, Any], notes: Notes) -> None:
        self.path = path
        self.metadata = metadata
        self.notes = notes

    def get(self, key: str, kind: type, what: str) -> Any:
        """The value of a key, None if it is absent. Raises CheckpointError if it is no `kind`."""
        value = self.metadata.get(PREFIX + key)
        if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            raise CheckpointError(f"{self.path}: {PREFIX}{key} is no {what}")
        return value

    def need(self, key: str, kind: type, what: str) -> Any:
        value = self.get(key, kind, what)
        if value is None:
            raise CheckpointError(
                f"{self.path}: no {PREFIX}{key}, so the tokenizer cannot be rebuilt; convert the model again"
            )
        return value

    def text(self, key: str) -> str:
        return str(self.need(key, str, "text"))

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, bool, "true or false")
        return default if value is None else bool(value)

    def tokens(self) -> tuple[list[str], np.ndarray[Any, Any]]:
        """Every token and its type. Raises CheckpointError for a token that appears twice."""
        tokens: list[str] = self.need("tokens", list, "list of tokens")
        if not tokens or not isinstance(tokens[0], str):
            raise CheckpointError(f"{self.path}: {PREFIX}tokens is no list of tokens")
        if len(set(tokens)) != len(tokens):
            raise CheckpointError(f"{self.path}: {PREFIX}tokens holds the same token twice")
        types = self.get("token_type", np.ndarray, "list of numbers")
        types = np.full(len(tokens), NORMAL) if types is None else types.copy()
        if len(types) != len(tokens):
            raise CheckpointError(f"{self.path}: {len(types)} token types for {len(tokens)} tokens")
        return tokens, types

    def token_id(self, key: str, count: int) -> int | None:
        """The id under a key, None where there is none."""
        found = read_ids(self.get(key, int, "token id"), str(self.path), PREFIX + key, self.notes)
        if found and found[0] >= count:
            raise CheckpointError(f"{self.path}: {PREFIX}{key} is {found[0]}, outside a vocabulary of {count}")
        return found[0] if found else None


def _byte_level(reader: _Reader, tokens: list[str]) -> tuple[dict[str, Any], bool]:
    """Byte-level BPE; how text is split also says whether BOS is usual."""
    merges: list[str] = reader.need("merges", list, "list of merges")
    pairs = [merge.split(" ") for merge in merges]
    wrong = next((merge for merge, pair in zip(merges, pairs, strict=True) if len(pair) != 2), None)
    if wrong is not None:
        raise CheckpointError(f"{reader.path}: merge {wrong!r} is no pair of tokens")
    splitting = choose_splitting(reader.path, reader.get("pre", str, "text"), tokens)
    model = _bpe(tokens, pairs, ignore_merges=splitting.whole_words)
    components = {
        "normalizer": splitting.normalizer,
        "pre_tokenizer": splitting.pre_tokenizer(),
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": model,
    }
    return components, splitting.add_bos


def _sentencepiece(reader: _Reader, tokens: list[str], types: np.ndarray[Any, Any]) -> tuple[dict[str, Any], bool]:
    """SentencePiece BPE, where BOS is usual."""
    scores = reader.need("scores", np.ndarray, "list of numbers")
    if len(scores) != len(tokens):
        raise CheckpointError(f"{reader.path}: {len(scores)} token scores for {len(tokens)} tokens")
    if reader.flag("remove_extra_whitespaces", False):
        raise UnsupportedError(f"{reader.path}: a tokenizer that removes extra spaces cannot be rebuilt")
    merges = merges_from_scores(tokens, scores.tolist(), types.tolist())
    unknown = reader.token_id("unknown_token_id", len(tokens))
    model = _bpe(tokens, merges, byte_fallback=True, unknown=None if unknown is None else tokens[unknown])
    spaces: dict[str, Any] = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if reader.flag("add_space_prefix", True):
        spaces = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}, spaces]}
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    components = {
        "normalizer": spaces,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": steps},
        "model": model,
    }
    return components, True


def merges_from_scores(tokens: Sequence[str], scores: Sequence[float], types: Sequence[int]) -> list[list[str]]:
    """The merge list that is equal to SentencePiece's rule "join the neighbours whose piece scores highest".

    Every way to cut a piece into two pieces becomes a merge; merges are ordered by the piece's score, highest first.
    """
    pieces = {token for token, kind in zip(tokens, types, strict=True) if kind in (NORMAL, USER_DEFINED)}
    order = sorted(range(len(tokens)), key=lambda index: -scores[index])
    merges = []
    for index in order:
        piece = tokens[index]
        if piece not in pieces:
            continue
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in pieces and right in pieces:
                merges.append([left, right])
    return merges


def _bpe(
    tokens: list[str],
    merges: list[list[str]],
    *,
    byte_fallback: bool = False,
    unknown: str | None = None,
    ignore_merges: bool = False,
) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unknown,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": byte_fallback,
        "byte_fallback": byte_fallback,
        "ignore_merges": ignore_merges,
        "vocab": {token: index for index, token in enumerate(tokens)},
        "merges": merges,
    }


def _bos_first(token: str, index: int) -> dict[str, Any]:
    bos = {"SpecialToken": {"id": token, "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [bos, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {token: {"id": token, "ids": [index], "tokens": [token]}},
    }


def _check(path: Path, tokenizer: Tokenizer, tokens: list[str]) -> None:
    """The rebuilt tokenizer must give every token the id that the weights know it by."""
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    wrong = next((token for index, token in enumerate(tokens) if vocabulary.get(token) != index), None)
    if wrong is not None or len(vocabulary) != len(tokens):
        raise CheckpointError(f"{path}: the rebuilt tokenizer does not keep the id of token {wrong!r}")
