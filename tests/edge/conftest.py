"""Tiny tokenizers of the kinds that models use, built with the tokenizers library alone; pipelines over a script."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from edge.options import RuntimeOptions
from edge.pipeline import Pipeline
from runtimes.scripted import write_bundle
from tests.edge.scripted import FOX, OpenScripted, with_file, with_template

CHAT_TOKENS = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]  # ids 0 to 4
CORPUS = [
    "system user assistant tool answers",
    "It's 1234567 items\n\n  x the 'word' isn't here != there . c",
    "hello there general kenobi, one two three\nUser: O P Q ",
]


@pytest.fixture(autouse=True)
def empty_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under `< /dev/null`: `dsedge run` reads what is piped in, also beside a prompt."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    """Byte-level BPE as GPT-2, Llama 3 and Qwen have it: every byte is a token; no prefix space."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=CHAT_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


@pytest.fixture(scope="session")
def sentencepiece() -> Tokenizer:
    """BPE with byte fallback as Llama 2 and Gemma have it: a space before the text, bytes for unknown characters."""
    pieces = [
        *CHAT_TOKENS,
        *(f"<0x{byte:02X}>" for byte in range(256)),
        *"▁abcdefghijklmnopqrstuvwxyz|_<>'.!=ABOPQU:\n",
    ]
    merges = [("▁", "a"), ("▁", "b"), ("h", "e"), ("▁", "t"), ("▁t", "he")]
    pieces += [left + right for left, right in merges]
    tokenizer = Tokenizer(
        models.BPE(
            {piece: n for n, piece in enumerate(pieces)}, merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"
        )
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CHAT_TOKENS])
    return tokenizer


@pytest.fixture(scope="session")
def metaspace() -> Tokenizer:
    """Unigram with a Metaspace at the very start only; the model's own pieces hold the control tokens."""
    pieces = [(token, 0.0) for token in CHAT_TOKENS] + [("▁", -2.0), ("▁the", -3.0), ("▁a", -3.5), ("▁b", -3.5)]
    pieces += [(letter, -5.0) for letter in "abcdefghijklmnopqrstuvwxyz|_<>/'.!=ABOPQU:\n"]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CHAT_TOKENS])
    return tokenizer


@pytest.fixture(scope="session")
def digits_apart() -> Tokenizer:
    """Byte-level BPE behind a Qwen-like split (each digit alone), with ordinary added tokens beside special ones."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"'s|'t|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|[^\s\p{L}\p{N}]+|\s+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=CHAT_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    ordinary = ["<think>", "</think>", "<turn>", "\n\n", "word"]
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in ordinary])
    return tokenizer


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenScripted]:
    """A pipeline over answers, perhaps with a chat template of one's own or with control tokens spelled otherwise.

    Of the other keywords, those of `write_bundle` start with `bundle_`; the rest are RuntimeOptions.
    """
    monkeypatch.setenv("DSEDGE_CACHE", str(tmp_path / "cache"))
    pipelines: list[Pipeline] = []

    def make(
        *answers: Any, template: str | None = None, rename: Mapping[str, str] | None = None, **options: Any
    ) -> Pipeline:
        written = {name[7:]: options.pop(name) for name in list(options) if name.startswith("bundle_")}
        bundle = write_bundle(tmp_path / f"{len(pipelines)}.dsedge", answers or [FOX], **written)
        if template is not None:
            bundle = with_template(bundle, template)
        if rename:
            text = (bundle.path / "tokenizer.json").read_text(encoding="utf-8")
            for old, new in rename.items():
                text = text.replace(json.dumps(old), json.dumps(new))
            bundle = with_file(bundle, "tokenizer.json", text)
        pipelines.append(Pipeline(bundle, RuntimeOptions(runtime="scripted", **options)))
        return pipelines[-1]

    yield make
    for pipeline in pipelines:
        pipeline.close()
