"""Flags of tokenizer_config.json that change ids: the same as transformers' own tokenizer of the folder gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from edge.errors import CheckpointError
from exporters.checkpoint.folder_tokenizer import read_tokenizer
from exporters.checkpoint.gguf_tokenizer import rebuild_tokenizer

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
TEXTS = ["hi a", " hi", "</s>hi a<s> hi", "a</s>\nhi", "hi  a. hi"]


def sentencepiece(spaces: str) -> Tokenizer:
    """BPE over a few SentencePiece pieces; `spaces` is a normalizer ("prepend") or a scheme of Metaspace."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += ["\u2581", *"abhi.", "\u2581a", "\u2581h", "\u2581hi", "hi", "ab"]
    merges = [("\u2581", "a"), ("\u2581", "h"), ("h", "i"), ("\u2581h", "i"), ("\u2581", "hi"), ("a", "b")]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if spaces == "prepend":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=spaces, split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in tokens[:3]])
    return tokenizer


def byte_level(*, prefix: bool, qwen: bool) -> Tokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {
        token: index for index, token in enumerate([*letters, "\u0120h", "hi", "\u0120hi", "<unk>", "<s>", "</s>"])
    }
    tokenizer = Tokenizer(models.BPE(vocab, [("\u0120", "h"), ("h", "i"), ("\u0120h", "i"), ("\u0120", "hi")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=not qwen)
    if qwen:
        words = pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, tokenizer.pre_tokenizer])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL.values()])
    return tokenizer


def write(folder: Path, tokenizer: Tokenizer, model_type: str, **settings: Any) -> Path:
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({**SPECIAL, **settings}))
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    return folder


def assert_equal_ids(folder: Path, model_type: str) -> tuple[str, ...]:
    """The notes of what was read, once every text has the ids of transformers and reads as it does there."""
    files = read_tokenizer(folder, {"model_type": model_type})
    found, reference = Tokenizer.from_str(files.tokenizer), AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        ids = reference.encode(text, add_special_tokens=False)
        assert found.encode(text, add_special_tokens=False).ids == ids, text
        assert found.decode(ids, skip_special_tokens=False) == reference.decode(ids), text
    return files.notes


@pytest.mark.parametrize("settings", [{}, {"legacy": True}, {"legacy": False}, {"add_prefix_space": False}])
@pytest.mark.parametrize("spaces", ["prepend", "first", "always", "never"])
@pytest.mark.parametrize("model_type", ["llama", "mistral", "ministral", "phi3", "gemma", "granite", "qwen3"])
def test_n31_flags_of_llama_s_tokenizer_class(
    tmp_path: Path, model_type: str, spaces: str, settings: dict[str, Any]
) -> None:
    folder = write(tmp_path, sentencepiece(spaces), model_type, tokenizer_class="LlamaTokenizerFast", **settings)
    assert_equal_ids(folder, model_type)


def test_n31_what_a_flag_changed_is_noted(tmp_path: Path) -> None:
    folder = write(tmp_path, sentencepiece("prepend"), "llama", tokenizer_class="LlamaTokenizer", legacy=False)
    assert "(legacy False) puts a space before the text first" in "".join(assert_equal_ids(folder, "llama"))
    folder = write(tmp_path, sentencepiece("always"), "llama", tokenizer_class="LlamaTokenizer", legacy=True)
    assert not any("spaces" in note for note in assert_equal_ids(folder, "llama"))


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("settings", [{}, {"add_prefix_space": False}, {"add_prefix_space": True}])
@pytest.mark.parametrize("named", ["GPT2Tokenizer", "GPT2TokenizerFast", "Qwen2Tokenizer", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "granite", "smollm3"])
def test_n31_space_before_a_byte_level_text(
    tmp_path: Path, prefix: bool, settings: dict[str, Any], named: str, model_type: str
) -> None:
    qwen = model_type == "qwen2" or (named == "Qwen2Tokenizer" and model_type != "granite")  # splits in its own way
    folder = write(tmp_path, byte_level(prefix=prefix, qwen=qwen), model_type, tokenizer_class=named, **settings)
    assert_equal_ids(folder, model_type)


@pytest.mark.parametrize("named", ["LlamaTokenizer", "PreTrainedTokenizerFast"])
def test_n31_byte_level_vocabulary_under_another_decoder(tmp_path: Path, named: str) -> None:
    tokenizer = sentencepiece("always")
    vocab = {token.replace("\u2581", "\u0120"): index for token, index in tokenizer.get_vocab().items()}
    merges = [("\u0120", "a"), ("\u0120", "h"), ("h", "i"), ("\u0120h", "i")]
    words = {f"\u0120word{index}": len(vocab) + index for index in range(20)}
    tokenizer.model = models.BPE({**vocab, **words}, merges, byte_fallback=True)
    with pytest.raises(CheckpointError, match="the vocabulary is byte-level and the decoder is of another kind"):
        read_tokenizer(write(tmp_path, tokenizer, "llama", tokenizer_class=named), {"model_type": "llama"})


def test_n31_sentencepiece_pieces_under_a_byte_level_decoder() -> None:
    tokens = ["<unk>", *(f"\u2581word{index}" for index in range(20))]
    values = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "merges": []}
    with pytest.raises(CheckpointError, match="the vocabulary is SentencePiece and the decoder is of another kind"):
        rebuild_tokenizer(Path("model.gguf"), {f"tokenizer.ggml.{key}": value for key, value in values.items()})
