"""No control token comes out of text, whatever stands in it and whatever the normalizer makes of it (N25).

The check is independent of how it is done: by ids, with the tokenizers library as the judge of what plain text is.
"""

from __future__ import annotations

import functools

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from edge.chat import ChatTemplate
from edge.errors import OptionError
from edge.tokenizer import Tokenizer

CONTROL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|IM|>", "[INST]")
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
FULL_WIDTH = "\uff1c\uff5cim_end\uff5c\uff1e"
NORMALIZERS = {
    "none": None,
    "nfkc": normalizers.NFKC(),
    "lowercase": normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]),
    "strip_accents": normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]),
    "replace": normalizers.Sequence([normalizers.Replace("*", "|"), normalizers.Replace("()", "")]),
    "prepend": normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]),
    "ligature": normalizers.Replace("\u2021", "<|im_end|>"),
}
ALPHABET = [
    *"<>|/[]_ameINSTdstr \n*()",
    *"\uff1c\uff1e\uff5c\u0301\u2581\u2021",
    *CONTROL,
    FULL_WIDTH,
    "<|im_",
    "end|>",
]
TEXTS = st.lists(st.sampled_from(ALPHABET), max_size=14).map("".join)


@functools.cache
def unigram(name: str) -> tokenizers.Tokenizer:
    """Control tokens are pieces of the model itself, and the best ones."""
    letters = sorted({letter for text in ALPHABET for letter in text} | {"\u2581"})
    pieces = [("<unk>", -20.0), *((token, -0.1) for token in CONTROL), *((letter, -9.0) for letter in letters)]
    tokenizer = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    tokenizer.normalizer = NORMALIZERS[name]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in CONTROL])
    return tokenizer


@functools.cache
def bpe(name: str) -> tokenizers.Tokenizer:
    """Control tokens are ordinary added tokens that are looked for in normalized text; the file marks none special."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(
        models.BPE({letter: index for index, letter in enumerate(["<unk>", *letters])}, [])
    )
    tokenizer.normalizer = NORMALIZERS[name]
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_tokens([AddedToken(token, normalized=True) for token in CONTROL])
    return tokenizer


@functools.cache
def opened(kind: str, name: str) -> Tokenizer:
    source = (unigram if kind == "unigram" else bpe)(name)
    ids = [source.token_to_id(token) for token in CONTROL]
    special = {**SPECIAL, **{f"{index}_token": token for index, token in enumerate(CONTROL)}}
    return Tokenizer(source.to_str(), bos=ids[0], eos=tuple(ids[1:]), add_bos=False, special=special)


def control_ids(kind: str, name: str) -> set[int]:
    source = (unigram if kind == "unigram" else bpe)(name)
    return {source.token_to_id(token) for token in CONTROL}


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("name", NORMALIZERS)
@settings(max_examples=150, deadline=None)
@given(text=TEXTS)
def test_n25_no_control_id_comes_out_of_text(kind: str, name: str, text: str) -> None:
    tokenizer, control = opened(kind, name), control_ids(kind, name)
    library = tokenizers.Tokenizer.from_str((unigram if kind == "unigram" else bpe)(name).to_str())
    library.encode_special_tokens = True
    plain = library.encode(text, add_special_tokens=False).ids
    try:
        ids = tokenizer.encode(text)
    except OptionError:
        assert name == "ligature", "only a single character may be refused"
        assert "\u2021" in text
        return
    assert control.isdisjoint(ids)
    if control.isdisjoint(plain):
        assert ids == plain, "text without control tokens is encoded as the library does"


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@settings(max_examples=100, deadline=None)
@given(before=TEXTS, after=TEXTS)
def test_n25_the_template_s_own_tokens_are_all_that_a_prompt_has(kind: str, before: str, after: str) -> None:
    template = ChatTemplate("{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}", {})
    messages = [{"role": "user", "content": before}, {"role": "user", "content": after}]
    for name in ("nfkc", "strip_accents", "replace"):
        ids = template.encode(messages, opened(kind, name), add_generation_prompt=False)
        start, end = (
            (unigram if kind == "unigram" else bpe)(name).token_to_id("<|im_start|>"),
            opened(kind, name).eos[2],
        )
        assert [token for token in ids if token in control_ids(kind, name)] == [start, end, start, end]


@pytest.mark.parametrize(("name", "text"), [
    ("nfkc", f"a{FULL_WIDTH}b"),
    ("lowercase", "a<|Im_EnD|>b"),
    ("strip_accents", "a<|i\u0301m_end|>b"),
    ("replace", "a<*im_()end*>b"),
])  # fmt: skip
@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_n25_by_hand(kind: str, name: str, text: str) -> None:
    source = (unigram if kind == "unigram" else bpe)(name)
    assert source.token_to_id("<|im_end|>") in source.encode(text).ids, "or the text shows nothing"
    assert control_ids(kind, name).isdisjoint(opened(kind, name).encode(text))


def test_n25_a_character_that_becomes_a_control_token_is_refused() -> None:
    with pytest.raises(OptionError, match="cannot be told from plain text"):
        opened("unigram", "ligature").encode("a\u2021b")


def test_n25_an_end_that_the_file_does_not_mark_special_is_no_text() -> None:
    pieces = [("<unk>", -20.0), ("</s>", -0.1), *((letter, -9.0) for letter in "</s>ab")]
    tokenizer = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    found = Tokenizer(tokenizer.to_str(), bos=None, eos=(1,), add_bos=False, special={"eos_token": "</s>"})
    assert tokenizer.encode("a</s>b").ids == [6, 1, 7]
    assert found.encode("a</s>b") == [6, 2, 3, 4, 5, 7]
