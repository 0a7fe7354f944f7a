"""Tokenizers rebuilt from GGUF metadata: same ids as the tokenizer that the file was made from."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
from transformers import GPT2Tokenizer, Qwen2Tokenizer
from transformers.convert_slow_tokenizer import TikTokenConverter
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from edge.errors import CheckpointError, UnsupportedError
from exporters.checkpoint import Checkpoint
from exporters.checkpoint.gguf_tokenizer import rebuild_tokenizer
from exporters.checkpoint.pretokenizers import SPLITTINGS, choose_splitting
from tests.corpus import TEXTS
from tests.exporters.checkpoint import slow_tokenizers as slow
from tests.exporters.tiny import SPECIAL, TEMPLATE, write_gguf

Open = Callable[[Path], Checkpoint]
FILE = Path("model.gguf")
NUMBERS = "It's 1234567 items\n\n  x"


def byte_bpe() -> dict[str, Any]:
    """A byte-level BPE trained without any splitting of digits or punctuation, so that a wrong splitting shows."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=1500, initial_alphabet=alphabet, show_progress=False, min_frequency=1)
    tokenizer.train_from_iterator([*TEXTS, "12345678901234567890", "1234567", "It's", "\n\n  x"], trainer)
    model: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    return model


def metadata(model: dict[str, Any], pre: str | None, /, **extra: Any) -> dict[str, Any]:
    """What a GGUF file would hold for a BPE model."""
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    values = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": np.ones(len(tokens), np.int32),
        "merges": [" ".join(pair) for pair in model["merges"]],
        **extra,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}


def rebuilt(values: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(rebuild_tokenizer(FILE, values).tokenizer)


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    """The pieces that a tokenizer merges within, as text."""
    return [text[start:stop] for _, (start, stop) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


# ---- byte-level BPE ----


def test_tiny_tokenizer_survives_the_round_trip(llama_folder: Path, tmp_path: Path, opened: Open) -> None:
    original = Tokenizer.from_file(str(llama_folder / "tokenizer.json"))
    files = opened(write_gguf(llama_folder, tmp_path / "m.gguf")).tokenizer()
    tokenizer = Tokenizer.from_str(files.tokenizer)
    for text in (*TEXTS, "<|im_start|>user\nhi 123<|im_end|>\n"):
        ids = original.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, add_special_tokens=False).ids == ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == original.decode(ids, skip_special_tokens=False)
    assert (files.bos, files.eos, files.add_bos) == (0, (2,), False)
    assert (files.special["bos_token"], files.special["eos_token"]) == (SPECIAL[0], SPECIAL[2])
    assert files.chat_template == TEMPLATE
    assert tokenizer.decode([1, 40, 2]) == tokenizer.decode([40]), "control tokens are special"


def test_t5_qwen2_equals_transformers() -> None:
    model = byte_bpe()
    reference = Qwen2Tokenizer(vocab=model["vocab"], merges=[tuple(pair) for pair in model["merges"]])
    tokenizer = rebuilt(metadata(model, "qwen2"))
    for text in TEXTS:
        assert tokenizer.encode(text).ids == reference(text)["input_ids"], text


def test_t5_gpt2_equals_transformers() -> None:
    model = byte_bpe()
    reference = GPT2Tokenizer(vocab=model["vocab"], merges=[tuple(pair) for pair in model["merges"]])
    tokenizer = rebuilt(metadata(model, "gpt-2"))
    for text in TEXTS:
        assert tokenizer.encode(text).ids == reference(text)["input_ids"], text


def test_t5_llama3_equals_transformers_expression() -> None:
    tokenizer = rebuilt(metadata(byte_bpe(), "llama-bpe", add_bos_token=False))
    split = pre_tokenizers.Split(Regex(TikTokenConverter().pattern), "isolated")
    for text in TEXTS:
        assert pieces(tokenizer, text) == [piece for piece, _ in split.pre_tokenize_str(text)]


@pytest.mark.parametrize("pre", sorted(SPLITTINGS.keys() & GGUF_PRE_TOKENIZER_SPLITS.keys()))
def test_t5_pieces_equal_transformers_expression(pre: str) -> None:
    tokenizer = rebuilt(metadata(byte_bpe(), pre, add_bos_token=False))
    normalizer = tokenizer.normalizer
    split = pre_tokenizers.Split(Regex(GGUF_PRE_TOKENIZER_SPLITS[pre]), "isolated")
    for text in [*TEXTS, "HelloWorld's UPPERs iPhone's//\n12345", "ÉcoleÉ ǅ ﬀ İstanbul’s 日本Go/a/\r\n"]:
        plain = normalizer.normalize_str(text) if normalizer else text
        assert pieces(tokenizer, plain) == [piece for piece, _ in split.pre_tokenize_str(plain)]


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("llama-bpe", ["It", "'s", " ", "123", "456", "7", " items", "\n\n", " ", " x"]),
        ("qwen2", ["It", "'s", " ", *"1234567", " items", "\n\n", " ", " x"]),
        ("smollm", ["It", "'s", " ", *"1234567", " items", "\n\n ", " x"]),
        ("refact", ["It", "'s", " ", *"1234567", " items", "\n\n ", " x"]),
        ("tekken", ["It", "'s", " ", *"1234567", " items", "\n\n", " ", " x"]),
        ("gpt-4o", ["It's", " ", "123", "456", "7", " items", "\n\n", " ", " x"]),
        ("gpt-2", ["It", "'s", " 1234567", " items", "\n\n ", " x"]),
        ("deepseek-coder", ["It", "'", "s", " ", *"1234567", " items", "\n", "\n", " ", " x"]),
        ("deepseek-llm", ["It", "'", "s", " ", *"1234567", " items", "\n", "\n", " ", " x"]),
        ("deepseek-v3", ["It", "'s", " ", "123", "456", "7", " items", "\n\n", " ", " x"]),
        ("deepseek-r1-qwen", ["It", "'s", " ", *"1234567", " items", "\n\n", " ", " x"]),
    ],
)
def test_t5_pieces_by_hand(pre: str, expected: list[str]) -> None:
    tokenizer = rebuilt(metadata(byte_bpe(), pre, add_bos_token=False))
    assert pieces(tokenizer, NUMBERS) == expected


def test_t5_llama3_takes_whole_words_first() -> None:
    model = byte_bpe()
    model["vocab"]["Ġzyxw"] = len(model["vocab"])  # a token that no merge leads to
    values = metadata(model, "llama-bpe", add_bos_token=False)
    assert rebuilt(values).encode(" zyxw").ids == [len(model["vocab"]) - 1]
    assert len(rebuilt(metadata(model, "gpt-2")).encode(" zyxw").ids) > 1


@pytest.mark.parametrize(("pre", "found"), [(None, r"no tokenizer\.ggml\.pre"), ("default", 'only "default"')])
def test_t5_missing_splitting_is_refused_without_proof(pre: str | None, found: str) -> None:
    with pytest.raises(CheckpointError, match=f"{found}.*unknown how text is split.*safetensors"):
        rebuilt(metadata(byte_bpe(), pre))


def test_t5_unknown_splitting_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.ggml\.pre is 'gpt-99'; known are dbrx, deepseek-coder, "):
        rebuilt(metadata(byte_bpe(), "gpt-99"))


QWEN2 = [*(f"[unused {index}]" for index in range(151643)), "<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def test_t5_missing_splitting_is_recovered_from_the_vocabulary() -> None:
    assert choose_splitting(FILE, None, QWEN2) == SPLITTINGS["qwen2"]
    assert choose_splitting(FILE, "default", QWEN2) == SPLITTINGS["qwen2"]
    with pytest.raises(CheckpointError, match="unknown how text is split"):
        choose_splitting(FILE, None, [*QWEN2[:-1], "<|im_end|"])


def test_t5_splitting_that_the_vocabulary_contradicts() -> None:
    with pytest.raises(CheckpointError, match="is 'llama-bpe' but the vocabulary is that of 'qwen2'"):
        choose_splitting(FILE, "llama-bpe", QWEN2)


def test_t5_smollm3_shares_a_vocabulary_with_llama3_but_adds_no_bos() -> None:
    marks = {128000: "<|begin_of_text|>", 128001: "<|end_of_text|>", 128009: "<|eot_id|>"}
    tokens = [marks.get(index, f"[unused {index}]") for index in range(128010)]
    assert choose_splitting(FILE, "llama-bpe", tokens).add_bos
    smollm3 = choose_splitting(FILE, "smaug-bpe", tokens)
    assert (smollm3.add_bos, smollm3.whole_words) == (False, True)
    with pytest.raises(CheckpointError, match="is 'dbrx' but the vocabulary is that of 'llama-bpe'"):
        choose_splitting(FILE, "dbrx", tokens)


def test_bos_and_end_tokens() -> None:
    model = byte_bpe()
    values = metadata(model, "llama-bpe", bos_token_id=5, eos_token_id=9, eot_token_id=7, eom_token_id=9)
    files = rebuild_tokenizer(FILE, values)
    assert (files.add_bos, files.bos, files.eos) == (True, 5, (7, 9))
    assert Tokenizer.from_str(files.tokenizer).encode("a").ids[0] == 5
    assert not rebuild_tokenizer(FILE, {**values, "tokenizer.ggml.add_bos_token": False}).add_bos
    with pytest.raises(CheckpointError, match="a BOS token is to be added but"):
        rebuild_tokenizer(FILE, metadata(model, "llama-bpe"))


def test_user_defined_tokens_are_matched_but_not_special() -> None:
    model = byte_bpe()
    count = len(model["vocab"])
    model["vocab"] |= {"<tool>": count, "<|end|>": count + 1}
    types = np.ones(count + 2, np.int32)
    types[count:] = (4, 3)
    tokenizer = rebuilt(metadata(model, "gpt-2", token_type=types))
    ids = tokenizer.encode("<tool><|end|>").ids
    assert ids == [count, count + 1]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<tool>"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": None}, r"no tokenizer\.ggml\.model"),
        ({"model": 3}, r"tokenizer\.ggml\.model is no text"),
        ({"tokens": None}, r"no tokenizer\.ggml\.tokens"),
        ({"tokens": ["a", "a"]}, "holds the same token twice"),
        ({"merges": None}, r"no tokenizer\.ggml\.merges"),
        ({"merges": ["a b c"]}, "merge 'a b c' is no pair"),
        ({"merges": ["qqq zzz"]}, "the tokenizer cannot be read"),
        ({"token_type": np.ones(3, np.int32)}, "3 token types for"),
        ({"eos_token_id": 10**6}, "eos_token_id is 1000000, outside a vocabulary"),
        ({"bos_token_id": True}, "bos_token_id is no token id"),
    ],
)
def test_damaged_metadata(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        rebuilt(metadata(byte_bpe(), "gpt-2", **change))


def test_other_kinds_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="kind 't5' cannot be rebuilt; known are gpt2 and llama"):
        rebuilt(metadata(byte_bpe(), None, model="t5"))


# ---- SentencePiece ----

WORDS = ["▁the", "▁th", "the", "he", "re", "▁there", "▁t", "▁a", "ca", "cat", "▁cat", "at", "▁▁", "▁▁▁▁", "ere", "th"]


def sentencepiece() -> dict[str, Any]:
    """A small SentencePiece BPE vocabulary with byte fallback; scores fall with the rank of the piece."""
    pieces_ = [*WORDS, *"abcdefghijklmnopqrstuvwxyz▁é.!"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces_]
    order = np.random.default_rng(5).permutation(len(WORDS))
    scores = np.zeros(len(tokens), np.float32)
    scores[259 : 259 + len(WORDS)] = -order.astype(np.float32)
    scores[259 + len(WORDS) :] = -100.0 - np.arange(len(pieces_) - len(WORDS))
    types = np.array([2, 3, 3, *[6] * 256, *[1] * len(pieces_)], np.int32)
    values = {
        "model": "llama",
        "tokens": tokens,
        "scores": scores,
        "token_type": types,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in values.items()}


def slow_sentencepiece(values: dict[str, Any], *, prefix: str = "▁", own: Sequence[str] = ()) -> slow.SentencePiece:
    tokens = values["tokenizer.ggml.tokens"]
    ids = {token: index for index, token in enumerate(tokens)}
    scores = dict(zip(tokens[259:], values["tokenizer.ggml.scores"][259:].tolist(), strict=True))
    for piece in own:
        del scores[piece]
    return slow.SentencePiece(ids, scores, byte_start=3, prefix=prefix, own=own)


def test_sentencepiece_equals_a_slow_one() -> None:
    values = sentencepiece()
    files = rebuild_tokenizer(FILE, values)
    tokenizer = Tokenizer.from_str(files.tokenizer)
    reference = slow_sentencepiece(values)
    rng = np.random.default_rng(6)
    texts = ["".join(rng.choice(list("thecar  é日")) for _ in range(30)) for _ in range(60)]
    for text in ["there the cat", " a  cat", "the    there!", "日本 🎉", *texts]:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert ids == reference.encode(text), text
        assert tokenizer.decode(ids) == text
    assert files.add_bos
    assert tokenizer.encode("a").ids[0] == 1


def test_sentencepiece_without_a_space_in_front() -> None:
    values = {**sentencepiece(), "tokenizer.ggml.add_space_prefix": False}
    tokenizer = rebuilt(values)
    ids = tokenizer.encode("the cat", add_special_tokens=False).ids
    assert tokenizer.id_to_token(ids[0]) == "the"
    assert tokenizer.decode(ids) == "the cat"
    assert tokenizer.decode(tokenizer.encode(" the", add_special_tokens=False).ids) == " the"
    with pytest.raises(UnsupportedError, match="removes extra spaces"):
        rebuilt({**values, "tokenizer.ggml.remove_extra_whitespaces": True})


def test_sentencepiece_as_gemma_has_it() -> None:
    """Runs of spaces and newlines and HTML tags are user-defined pieces, written as text is, and cut out first."""
    own = ["  ", "   ", "\n", "\n\n", "<b>", "</b>"]
    values = {**sentencepiece(), "tokenizer.ggml.add_space_prefix": False}
    values["tokenizer.ggml.tokens"] = [*values["tokenizer.ggml.tokens"], *own]
    values["tokenizer.ggml.token_type"] = np.append(values["tokenizer.ggml.token_type"], [4] * len(own))
    values["tokenizer.ggml.scores"] = np.append(values["tokenizer.ggml.scores"], [-1000.0] * len(own))
    tokenizer = rebuilt(values)
    reference = slow_sentencepiece(values, prefix="", own=own)
    rng = np.random.default_rng(7)
    texts = ["".join(rng.choice([*"thecr é日", "\n", "  ", "<b>"]) for _ in range(30)) for _ in range(60)]
    for text in ["the cat", " the", "the   cat  \n\n\nthere", "<b>the</b>", "a     b", *texts]:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert ids == reference.encode(text), text
        assert tokenizer.decode(ids) == text


def test_n5_named_templates_of_a_gguf_file() -> None:
    values = metadata(byte_bpe(), "gpt-2")
    files = rebuild_tokenizer(
        FILE, {**values, "tokenizer.chat_template": "plain", "tokenizer.chat_template.tool_use": "with tools"}
    )
    assert (files.chat_template, files.chat_templates) == ("plain", {"tool_use": "with tools"})
    with pytest.raises(CheckpointError, match=r'no chat template is named "default" .there are: tool_use'):
        rebuild_tokenizer(FILE, {**values, "tokenizer.chat_template.tool_use": "with tools"})
    with pytest.raises(CheckpointError, match=r"tokenizer\.chat_template\.rag is no text"):
        rebuild_tokenizer(FILE, {**values, "tokenizer.chat_template.rag": 3})
