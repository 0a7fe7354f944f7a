"""Inputs that once got something else than an EdgeError out of a reader."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edge.errors import CheckpointError, FormatError
from edge.tokenizer import Tokenizer
from exporters.checkpoint.folder_tokenizer import read_tokenizer
from tests.fuzz import seeds


def test_a_tokenizer_that_cannot_encode_what_it_does_not_know(tmp_path: Path) -> None:
    """Unigram without an unknown token: the library raises a bare Exception at the first unknown character."""
    document = json.loads(seeds.tokenizers(tmp_path)[2])
    document["model"]["unk_id"] = None
    tokenizer = Tokenizer(json.dumps(document), bos=None, eos=(), add_bos=False, special={})
    with pytest.raises(FormatError, match="cannot encode a text: Encountered an unknown token"):
        tokenizer.encode("xyz")


def test_a_tokenizer_at_which_the_library_panics(tmp_path: Path) -> None:
    """A prefix of continuing pieces that is longer than a piece: its PanicException is no Exception."""
    document = json.loads(seeds.tokenizers(tmp_path / "seeds")[1])
    document["model"]["continuing_subword_prefix"] = ".."
    text = json.dumps(document)
    with pytest.raises(FormatError, match=r"cannot be read as a tokenizer\.json: slice index"):
        Tokenizer(text, bos=None, eos=(), add_bos=False, special={})
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"cannot be read as a tokenizer\.json: slice index"):
        read_tokenizer(tmp_path, {})
