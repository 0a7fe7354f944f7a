"""Every kind of tokenizer, from tokenizer.json and from GGUF metadata, against its published rules, on one corpus.

The vocabulary is trained on the corpus without any splitting, so that a boundary in the wrong place changes ids.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers.tokenization_utils_base import generate_merges

from edge.stream import TextStream
from edge.tokenizer import Tokenizer as Edge
from exporters.checkpoint import TokenizerFiles
from exporters.checkpoint.folder_tokenizer import read_tokenizer
from exporters.checkpoint.gguf_tokenizer import rebuild_tokenizer
from exporters.checkpoint.pretokenizers import SPLITTINGS
from tests.corpus import TEXTS
from tests.exporters.checkpoint import slow_tokenizers as slow

CONTROL = ("<unk>", "<s>", "</s>")  # ids 0 to 2
GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
DEEPSEEK_CODER = ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, r"\p{N}")
# The published rule lists letters one range after another. They are those with case, except these.
UNLISTED = (
    "\u0560-\u0588\u10c7-\u10ff\u1c80-\u1c8a\u2d00-\u2d2d\ua790-\ua7fa\uab30-\uab68"
    "\U00010570-\U000105bc\U00016e40-\U00016e7f\U0001d400-\U0001d7cb\U0001df00-\U0001df2a"
)
DEEPSEEK_LLM = (
    "[\r\n]",
    rf"\s?(?:(?![{UNLISTED}])[\p{{Lu}}\p{{Ll}}\p{{Lt}}])+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    CJK,
    r"\p{N}",
)
DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
)


@dataclass(frozen=True, slots=True)
class Kind:
    """What the published tokenizer.json of a kind of byte-level tokenizers says."""

    patterns: tuple[str, ...]
    nfc: bool = False
    whole_words: bool = False
    bos: bool = False
    own: tuple[str, ...] = ()  # ordinary added tokens

    def reference(self) -> slow.ByteLevel:
        vocab, merges = trained()
        return slow.ByteLevel(
            vocab,
            merges,
            patterns=self.patterns,
            form="NFC" if self.nfc else None,
            whole_words=self.whole_words,
            own=self.own,
        )


BYTES_OF_NO_TEXT = tuple("ÀÁõö÷øùúûüýþÿ")  # letters of bytes that UTF-8 never has; DeepSeek added them as tokens
DIGITS_APART = Kind((r"\p{N}", GPT2))
LLAMA = Kind((LLAMA3,), whole_words=True, bos=True)
KINDS = {
    "gpt-2": Kind((GPT2,)),
    "smollm": DIGITS_APART,
    "refact": DIGITS_APART,
    "starcoder": DIGITS_APART,
    "llama-bpe": LLAMA,
    "llama3": LLAMA,
    "llama-v3": LLAMA,
    "falcon3": LLAMA,
    "smaug-bpe": Kind((LLAMA3,), whole_words=True),
    "dbrx": Kind((LLAMA3,)),
    "qwen2": Kind((QWEN2,), nfc=True),
    "qwen35": Kind((QWEN35,), nfc=True),
    "deepseek-r1-qwen": Kind((QWEN2,), nfc=True, bos=True),
    "deepseek-coder": Kind(DEEPSEEK_CODER, bos=True, own=BYTES_OF_NO_TEXT),
    "deepseek-llm": Kind(DEEPSEEK_LLM, bos=True, own=BYTES_OF_NO_TEXT),
    "deepseek-v3": Kind(DEEPSEEK_V3, bos=True),
    "tekken": Kind((TEKKEN,), whole_words=True, bos=True),
    "gpt-4o": Kind((GPT4O,)),
}


@functools.cache
def trained() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges of a byte-level BPE over the corpus, and one token that no merge leads to."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=2500,
        special_tokens=list(CONTROL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*TEXTS, *TEXTS], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return {**model["vocab"], "\u0120bridge": len(model["vocab"])}, [tuple(pair) for pair in model["merges"]]


def as_json(kind: Kind, folder: Path) -> TokenizerFiles:
    """The kind's tokenizer as a folder has it, put together with the tokenizers library."""
    vocab, merges = trained()
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=kind.whole_words))
    if kind.nfc:
        tokenizer.normalizer = normalizers.NFC()
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in kind.patterns]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(token, normalized=True) for token in kind.own])
    return _saved(tokenizer, folder, bos=kind.bos)


def _saved(tokenizer: Tokenizer, folder: Path, *, bos: bool) -> TokenizerFiles:
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in CONTROL])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return read_tokenizer(folder, {})


def as_gguf(**values: Any) -> TokenizerFiles:
    ids = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    return rebuild_tokenizer(Path("m.gguf"), {f"tokenizer.ggml.{key}": v for key, v in {**ids, **values}.items()})


def byte_level_gguf(pre: str) -> TokenizerFiles:
    vocab, merges = trained()
    types = np.array([3] * len(CONTROL) + [1] * (len(vocab) - len(CONTROL)), np.int32)
    types[[vocab[token] for token in KINDS[pre].own]] = 4
    pairs = [" ".join(pair) for pair in merges]
    return as_gguf(model="gpt2", pre=pre, tokens=sorted(vocab, key=vocab.__getitem__), token_type=types, merges=pairs)


def edge_tokenizer(files: TokenizerFiles) -> Edge:
    return Edge(files.tokenizer, bos=files.bos, eos=files.eos, add_bos=files.add_bos, special=files.special)


def streamed(tokenizer: Edge, ids: Sequence[int]) -> str:
    stream = TextStream(tokenizer)
    return "".join([*map(stream.push, ids), stream.finish()])


def test_every_splitting_has_its_published_rule_here() -> None:
    assert KINDS.keys() == SPLITTINGS.keys()


@pytest.mark.parametrize("route", ["tokenizer.json", "gguf"])
@pytest.mark.parametrize("pre", sorted(KINDS))
def test_t5_byte_level_ids_equal_the_rules(pre: str, route: str, tmp_path: Path) -> None:
    kind = KINDS[pre]
    tokenizer = edge_tokenizer(as_json(kind, tmp_path) if route == "tokenizer.json" else byte_level_gguf(pre))
    reference = kind.reference()
    for text in TEXTS:
        ids = reference.encode(text)
        assert tokenizer.encode(text) == ids, text
        assert tokenizer.encode_prompt(text) == [1] * kind.bos + ids
        assert tokenizer.decode(ids) == streamed(tokenizer, ids) == reference.normalize(text)


@pytest.mark.parametrize("pre", sorted(KINDS))
def test_t5_pieces_of_random_text_equal_the_rules(pre: str) -> None:
    """Neighbours that no text has: letters, marks, digits, spaces and signs drawn at random."""
    tokenizer = Tokenizer.from_str(byte_level_gguf(pre).tokenizer)
    rng = np.random.default_rng(11)
    signs = [
        *"aBzéÉſǅʻ日のｶ한ا١कि็ัไ0 9½Ⅷ  \t\n\r\u00a0\u3000\u2028\u200d'’\"!/-_=<$€^+。，「…\u0301\u20e3👍🏽",
        "'s",
        "'LL",
    ]
    for _ in range(400):
        text = "".join(rng.choice(signs, 12))
        if tokenizer.normalizer:
            text = tokenizer.normalizer.normalize_str(text)
        found = [text[start:stop] for _, (start, stop) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
        assert found == slow.pieces(KINDS[pre].patterns, text), text


def test_s6_added_tokens_keep_their_text(tmp_path: Path) -> None:
    """One of letters that are no bytes of text is shown as it is written; where there is none, the decoder stays."""
    tokenizer = edge_tokenizer(as_json(Kind((GPT2,), own=("ü", "ü中", "\u00e9")), tmp_path))
    text = "für ü中 難"  # the last one's first byte is 0xE9, whose letter is an added token here
    ids = tokenizer.encode(text)
    assert [tokenizer.decode([token]) for token in (ids[1], ids[4])] == ["ü", "ü中"]
    assert tokenizer.decode(ids) == streamed(tokenizer, ids) == text
    plain = as_json(Kind((GPT2,), own=("a", "<", "\u00e9")), tmp_path)
    assert json.loads(plain.tokenizer)["decoder"]["type"] == "ByteLevel"


def test_t5_the_corpus_tells_the_kinds_apart() -> None:
    """A kind mistaken for another would fail above: no two rules give the same ids on the whole corpus."""
    kinds = {kind for kind in KINDS.values() if not kind.bos} | {KINDS[pre] for pre in KINDS if "deepseek" in pre}
    seen = {(kind.nfc, tuple(tuple(kind.reference().encode(text)) for text in TEXTS)) for kind in kinds}
    assert len(seen) == len({(kind.patterns, kind.nfc, kind.whole_words) for kind in kinds})


# ---- SentencePiece ----

OWN = ("\n", "\n\n", "\n\n\n", "  ", "   ", "    ", "\t", "\t\t", "<!--", "</p>")  # what Gemma cuts out first


@functools.cache
def pieces_and_scores() -> tuple[tuple[str, ...], dict[str, float]]:
    """The pieces of a SentencePiece vocabulary over the corpus in order of their scores; characters come last."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    letters = sorted({letter for text in TEXTS for letter in text if letter not in " \r\n\t👍🏽한"} | {"\u2581"})
    alphabet = [letter for letter in letters if ord(letter) < 0x3000]
    trainer = trainers.BpeTrainer(
        vocab_size=1600, limit_alphabet=len(alphabet), initial_alphabet=alphabet, show_progress=False, min_frequency=2
    )
    tokenizer.train_from_iterator([*TEXTS, *TEXTS], trainer)
    vocab = tokenizer.get_vocab()
    joined = sorted((piece for piece in vocab if len(piece) > 1 and piece not in OWN), key=vocab.__getitem__)
    single = sorted(piece for piece in vocab if len(piece) == 1 and piece not in OWN)
    scores = {piece: -float(rank) for rank, piece in enumerate(joined)}
    return (*joined, *single), scores | dict.fromkeys(single, -1e6)


@pytest.mark.parametrize("route", ["tokenizer.json", "gguf"])
@pytest.mark.parametrize("kind", ["llama-2", "gemma"])
def test_t5_sentencepiece_ids_equal_the_rules(kind: str, route: str, tmp_path: Path) -> None:
    ordinary, scores = pieces_and_scores()
    own, prefix = ((), "\u2581") if kind == "llama-2" else (OWN, "")
    tokens = [*CONTROL, *(f"<0x{byte:02X}>" for byte in range(256)), *ordinary, *own]
    ids = {token: index for index, token in enumerate(tokens)}
    reference = slow.SentencePiece(ids, scores, byte_start=len(CONTROL), prefix=prefix, own=own)
    if route == "gguf":
        types = [2, 3, 3, *[6] * 256, *[1] * len(ordinary), *[4] * len(own)]
        numbers = [*[0.0] * 259, *(scores[piece] for piece in ordinary), *[-1000.0] * len(own)]
        files = as_gguf(
            model="llama",
            tokens=tokens,
            token_type=np.array(types, np.int32),
            scores=np.array(numbers, np.float32),
            add_space_prefix=bool(prefix),
        )
    else:
        files = _saved(sentencepiece_json(ids, scores, own=own, prefix=prefix), tmp_path, bos=True)
    tokenizer = edge_tokenizer(files)
    for text in TEXTS:
        expected = reference.encode(text)
        assert tokenizer.encode(text) == expected, text
        assert tokenizer.encode_prompt(text) == [1, *expected]
        assert tokenizer.decode(expected) == streamed(tokenizer, expected) == text


def sentencepiece_json(ids: dict[str, int], scores: dict[str, float], *, own: Sequence[str], prefix: str) -> Tokenizer:
    """A tokenizer.json as the models' own are: merges and steps as transformers' converter makes them."""
    merges = generate_merges({piece: ids[piece] for piece in scores}, scores)
    tokenizer = Tokenizer(models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
        tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    else:
        tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_tokens([AddedToken(piece, normalized=False) for piece in own])
    return tokenizer
