"""Text to token ids and back, over a tokenizer.json.

What this module knows: which ids are control tokens, how to keep text from becoming one, and the BOS rule. It does
not know templates (edge/chat.py) or streaming (edge/stream.py).

Text is always plain: a control token's spelling inside it is encoded as ordinary characters. Control tokens enter a
prompt only as ids, through `encode_fragments`, which keeps everything that the tokenizer does around a control token
(the prefix space of its pre-tokenizer, white space that the token swallows) as it is when the tokenizer parses the
token itself.
"""

from __future__ import annotations

import itertools
import json
import re
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import tokenizers

from edge.bundle import TOKENIZER, Bundle
from edge.control_tokens import ControlTokens
from edge.errors import BundleError, FormatError, InternalError, OptionError, found_in

_SURROGATE = re.compile("[\ud800-\udfff]")
_CUTS = 8  # how often a text is cut: the rest of a control token may be another one


class Tokenizer:
    """A tokenizer.json with what its file does not say: the bos and eos ids and whether a prompt starts with bos.

    `control` are its control tokens: those that the file marks as special, and named ones (bos, eos, ...) among its
    added tokens. `ordinary_added` are the other added tokens, spelling → id. `control_ids` are the ids that text never
    shows: those of `control`, and bos and eos even where the file has them as ordinary tokens. `byte_ids` are the
    tokens for single bytes, id → byte. Safe for concurrent use: nothing changes after construction.
    """

    def __init__(
        self, source: str | Path, *, bos: int | None, eos: tuple[int, ...], add_bos: bool, special: Mapping[str, str]
    ) -> None:
        """Read a tokenizer.json from a path, or from its text given as a string.

        `special` maps names to spellings, such as {"unk_token": "<unk>"}; they are control tokens where the file has
        them as added tokens. Raises FormatError if it is not a tokenizer.json or an id is not in it.
        """
        self._tok = read_json(source)
        self.vocab_size = self._tok.get_vocab_size()
        self.bos, self.eos, self.add_bos = bos, eos, add_bos
        for name, token in (("bos", bos), *(("eos", token) for token in eos)):
            if token is not None and self._tok.id_to_token(token) is None:
                raise FormatError(f"{name} id {token} is not in the tokenizer, which has {self.vocab_size} tokens")
        if add_bos and bos is None:
            raise FormatError("the tokenizer is to add a bos token and none is named; name it or turn add_bos off")
        added = self._tok.get_added_tokens_decoder()
        named = {*eos, bos, *(self._tok.token_to_id(text) for text in special.values())}
        spellings = {token.content: number for number, token in added.items()}
        ordinary = {number for number, token in added.items() if not token.special} - named
        self.control = ControlTokens({text: number for text, number in spellings.items() if number not in ordinary})
        self.ordinary_added = {text: number for text, number in spellings.items() if number in ordinary}
        self.control_ids = frozenset(self.control.ids.values()).union(eos, () if bos is None else (bos,))
        # Ends that are mere pieces of the vocabulary: a mark never comes of text, a word or a newline may.
        self._always_banned = frozenset(token for token in self.control_ids if _is_mark(self._tok.id_to_token(token)))
        self._unknown = self._tok.token_to_id(special["unk_token"]) if "unk_token" in special else None
        self._add_aliases(added)
        kinds = _decoder_kinds(self._tok.decoder)
        self.byte_level = "ByteLevel" in kinds
        self.contextual = kinds != {"ByteLevel"}  # what an id spells may depend on those before it
        found = (
            {self._tok.token_to_id(f"<0x{byte:02X}>"): byte for byte in range(256)} if "ByteFallback" in kinds else {}
        )
        self.byte_ids = {token: byte for token, byte in found.items() if token is not None}
        self._by_byte = {byte: token for token, byte in self.byte_ids.items()}

    def encode(self, text: str) -> list[int]:
        """Ids of plain text: no control token, no bos."""
        return self.encode_fragments([text])

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a raw prompt: plain text, after a bos if this tokenizer adds one."""
        return self.with_bos(self.encode(text))

    def with_bos(self, ids: list[int]) -> list[int]:
        """`ids` starting with exactly one bos if this tokenizer adds one; otherwise untouched."""
        if not self.add_bos or self.bos is None or ids[:1] == [self.bos]:
            return ids
        return [self.bos, *ids]

    def encode_fragments(self, fragments: Sequence[str | int], *, control: ControlTokens | None = None) -> list[int]:
        """Ids of texts and added tokens (given by id) in order; each text between two tokens is one plain piece.

        No id of `control` (by default this tokenizer's own) comes out of a text, except the unknown token. Where one
        would, because the text spells it or something that the normalizer makes it of, the text is cut inside it; only
        there do ids differ from the tokenizer's own plain encoding. Raises OptionError for a text in which that cannot
        be had (one with a control token of a single character), and for one that is no Unicode text.
        """
        for fragment in fragments:
            if isinstance(fragment, str):
                check_text(fragment, "the text")
        banned = self._always_banned.union((control or self.control).ids.values()) - {self._unknown}
        text, found = self._encode(fragments)
        for _ in range(_CUTS):
            if banned.isdisjoint(found.ids):
                return self._insert([token for token in found.ids if token != self._break_id], fragments)
            spans = [span for token, span in zip(found.ids, found.offsets, strict=True) if token in banned]
            if any(stop - start < 2 for start, stop in spans):
                break
            text = _marked(text, [start + 1 for start, _ in spans], self._break)
            found = self._library_encode(text)
        raise OptionError("the text holds a control token of this model that cannot be told from plain text")

    def decode(self, ids: Iterable[int]) -> str:
        """Text of the ids, without control tokens and ids that have no token; nothing in it is tidied up."""
        return self.spell([token for token in ids if not self.is_silent(token)])

    def spell(self, ids: Sequence[int]) -> str:
        """`decode` of ids of which none is silent."""
        if self.byte_ids:
            ids = self._mended(ids)
        text = _library("the tokenizer cannot decode its tokens", self._tok.decode, ids, skip_special_tokens=False)
        return str(text)

    def _mended(self, ids: Sequence[int]) -> list[int]:
        """The ids with bytes that are no UTF-8 replaced by those of U+FFFD: the library takes a whole run of byte
        tokens for broken if one byte is."""
        made: list[int] = []
        for is_byte, run in itertools.groupby(ids, self.byte_ids.__contains__):
            found = list(run)
            if is_byte:
                data = bytes(self.byte_ids[token] for token in found)
                whole = data.decode("utf-8", "replace").encode()
                if whole != data and all(byte in self._by_byte for byte in whole):
                    found = [self._by_byte[byte] for byte in whole]
            made += found
        return made

    def raw(self, token: int) -> bytes:
        """The bytes of a token of a byte-level vocabulary, of which it spells each as a character of its own."""
        text = self._tok.id_to_token(token) or ""
        try:
            return bytes([_BYTES[letter] for letter in text])
        except KeyError:  # an added token, spelled as it is
            return text.encode()

    def is_silent(self, token: int) -> bool:
        """Whether text never shows the id: a control token, or one without a token (a padded row of the head)."""
        return token in self._silent or not self._tok.id_to_token(token)

    def padded(self, rows: int) -> tuple[int, ...]:
        """The ids below `rows` that have no token: models have more rows than tokens, for round sizes.

        No token has an id of `rows` or more, which an export sees to.
        """
        known, stand_ins = self._tok.id_to_token, self._alias_ids | {self._break_id}
        ids = range(self.vocab_size, rows)
        behind = [token for token in ids if token in stand_ins or not known(token)]
        if len(behind) == len(ids):  # as many tokens as ids before them: no gap, and a look at each is saved
            return tuple(behind)
        return tuple([token for token in range(rows) if token in stand_ins or not known(token)])

    def _add_aliases(self, added: Mapping[int, Any]) -> None:
        """Give every added token a stand-in that text cannot spell, with the same habits around it.

        Special tokens are not looked for from here on, stand-ins are: ordinary added tokens named by random digits.
        One serves all tokens with the same flags, since their order says which is meant.
        """
        self._tok.encode_special_tokens = True
        names: dict[tuple[bool, bool, bool], str] = defaultdict(digits)
        self._alias = {number: names[token.lstrip, token.rstrip, token.normalized] for number, token in added.items()}
        self._sure_alias = {number: names[token.lstrip, token.rstrip, False] for number, token in added.items()}
        self._break = digits()
        stand_ins = [
            tokenizers.AddedToken(name, lstrip=left, rstrip=right, normalized=normalized, special=False)
            for (left, right, normalized), name in (*names.items(), ((False, False, False), self._break))
        ]
        pieces = self._tok.get_vocab_size(with_added_tokens=False)
        start = max([pieces, *(token + 1 for token in added)])  # as the library numbers them
        taken = [token for token in range(start, start + len(stand_ins)) if self._tok.id_to_token(token)]
        if taken:
            raise FormatError(f"the tokenizer's ids have gaps: it has {start} tokens, and one has the id {taken[0]}")
        self._tok.add_tokens(stand_ins)
        self._break_id = self._tok.token_to_id(self._break)
        self._alias_ids = frozenset(self._tok.token_to_id(name) for name in names.values())
        self._silent = self.control_ids | self._alias_ids | {self._break_id}

    def _encode(self, fragments: Sequence[str | int]) -> tuple[str, tokenizers.Encoding]:
        """The fragments as one text, with stand-ins for the tokens among them, and what the library makes of it."""
        tokens = sum(isinstance(fragment, int) for fragment in fragments)
        # A normalizer that puts a space before text hides normalized tokens inside it (from the library as well);
        # the prompt needs its control tokens, so then they are matched before normalization.
        for alias in (self._alias, self._sure_alias):
            text = "".join(fragment if isinstance(fragment, str) else alias[fragment] for fragment in fragments)
            found = self._library_encode(text)
            if sum(token in self._alias_ids for token in found.ids) == tokens:
                return text, found
        raise InternalError(f"the tokenizer lost control tokens: {tokens} were to be in the prompt")

    def _library_encode(self, text: str) -> tokenizers.Encoding:
        problem = "the tokenizer cannot encode a text"
        found: tokenizers.Encoding = _library(problem, self._tok.encode, text, add_special_tokens=False)
        return found

    def _insert(self, ids: list[int], fragments: Sequence[str | int]) -> list[int]:
        """The ids with each stand-in replaced by the token that it stands for."""
        written = iter([fragment for fragment in fragments if isinstance(fragment, int)])
        return [next(written) if token in self._alias_ids else token for token in ids]


def check_text(text: str, name: str) -> None:
    """Raise OptionError for half of a surrogate pair, which is no character: bytes of another encoding, mostly."""
    half = _SURROGATE.search(text)
    if half:
        raise OptionError(
            f"{name} is not valid Unicode: character {half.start() + 1} is half of a surrogate pair "
            f"(U+{ord(half[0]):04X}); pass text that is encoded as UTF-8"
        )


def digits() -> str:
    """Twenty random digits: a mark that text cannot guess and that letter case and JSON escapes leave alone."""
    return f"{secrets.randbelow(10**20):020}"


class SpecialTokens(Protocol):
    """What a manifest and the tokenizer files of a checkpoint both say beside the tokenizer.json; see `Tokenizer`."""

    @property
    def bos(self) -> int | None: ...
    @property
    def eos(self) -> tuple[int, ...]: ...
    @property
    def add_bos(self) -> bool: ...
    @property
    def special(self) -> Mapping[str, str]: ...


def build_tokenizer(text: str, tokens: SpecialTokens) -> Tokenizer:
    """The tokenizer of a tokenizer.json's text. Raises FormatError as `Tokenizer` does."""
    return Tokenizer(text, bos=tokens.bos, eos=tokens.eos, add_bos=tokens.add_bos, special=tokens.special)


def open_tokenizer(bundle: Bundle) -> Tokenizer:
    """The tokenizer of a bundle. Raises BundleError where it is missing or damaged."""
    text = bundle.read_text(TOKENIZER)
    if text is None:
        raise BundleError(f"{bundle.path}: holds no {TOKENIZER}")
    with found_in(BundleError, bundle.path):
        return build_tokenizer(text, bundle.manifest.tokenizer)


def read_json(source: str | Path) -> tokenizers.Tokenizer:
    """The library's tokenizer of a tokenizer.json, a path or its text. Raises FormatError for a bad one."""
    is_path = isinstance(source, Path)
    tok: tokenizers.Tokenizer = _library(
        f"{source if is_path else 'the tokenizer'} cannot be read as a tokenizer.json",
        tokenizers.Tokenizer.from_file if is_path else tokenizers.Tokenizer.from_str,
        str(source),
    )
    # A file may carry the truncation of its training run.
    tok.no_truncation()
    tok.no_padding()
    return tok


def _library(problem: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """What a call of the tokenizers library returns; what it raises turns into a FormatError.

    That is a bare Exception for any bad file, and where its own code gives up a PanicException, which is no Exception
    and cannot be imported.
    """
    try:
        return call(*arguments, **options)
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise FormatError(f"{problem}: {' '.join(str(error).split())}") from error


def _decoder_kinds(decoder: Any) -> set[str]:
    """Names of a decoder's steps, as in tokenizer.json; empty without a decoder."""
    if decoder is None:
        return set()
    state = json.loads(decoder.__getstate__())
    return {step["type"] for step in (state, *state.get("decoders", ()))}


def _spellings() -> dict[str, int]:
    """The characters by which byte-level vocabularies spell bytes, as GPT-2 has them: a byte that is a visible
    character of Latin-1 spells itself, the others take the characters from U+0100 on in order."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTES = _spellings()


def _is_mark(token: str | None) -> bool:
    return token is not None and token[:1] in ("<", "[") and token[-1:] in (">", "]")


def _marked(text: str, places: Sequence[int], mark: str) -> str:
    """`text` with a mark at each of the places, which rise."""
    pieces = [text[start:stop] for start, stop in itertools.pairwise([0, *places, len(text)])]
    return mark.join(pieces)
