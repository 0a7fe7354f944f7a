"""Tokens that end a turn, wherever a source names them: in its settings, or only in what its template writes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, models

from edge.errors import CheckpointError
from edge.tokenizer import Tokenizer as Edge
from exporters.checkpoint import Checkpoint
from exporters.checkpoint.folder_tokenizer import read_tokenizer
from exporters.checkpoint.gguf_tokenizer import rebuild_tokenizer
from tests.exporters.checkpoint import published

Open = Callable[[Path], Checkpoint]
FILE = Path("model.gguf")


def edit(path: Path, **values: Any) -> None:
    data = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**data, **values}))


@pytest.fixture
def folder(llama_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(llama_folder, tmp_path / "model"))


@pytest.mark.parametrize("name", published.TEMPLATES)
def test_n1_the_token_behind_an_assistant_s_words_ends_the_turn(name: str, tmp_path: Path) -> None:
    """A folder whose settings name an end of text alone; the ends of turns are those of the models' own settings."""
    case = published.TEMPLATES[name]
    tokens = {token: index for index, token in enumerate(("<unk>", "<eot>", *case.tokens))}
    tokenizer = Tokenizer(models.WordLevel({**tokens, "a": len(tokens)}, "<unk>"))
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in tokens])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    edit(tmp_path / "tokenizer_config.json", chat_template=case.template, **{"eos_token": "<eot>", **case.special})
    files = read_tokenizer(tmp_path, {})
    found = {token for token, index in tokens.items() if index in files.eos}
    assert found - {"<eot>"} == case.ends
    assert all(files.enders[tokens[token]] == ("chat template",) for token in case.ends - set(case.special.values()))


def test_n1_phi3_file_that_knows_the_end_of_text_alone() -> None:
    files = rebuild_tokenizer(FILE, published.phi3())
    assert files.enders == {32000: ("tokenizer.ggml.eos_token_id",), 32007: ("chat template",)}


def test_n1_ends_of_turns_and_messages_have_keys_of_their_own(folder: Path, opened: Open) -> None:
    edit(folder / "generation_config.json", eot_token_id=5, eos_token_id=[2])
    edit(folder / "tokenizer_config.json", eom_token="<|im_start|>")
    enders = opened(folder).tokenizer().enders
    assert enders[5] == ("generation_config.json (eot_token_id)",)
    assert enders[1] == ("tokenizer_config.json (eom_token)",)
    assert enders[2][-1] == "chat template"


def test_n1_other_templates_count_too(folder: Path, opened: Open) -> None:
    named = folder / "additional_chat_templates"
    named.mkdir()
    (named / "tool_use.jinja").write_text("{% for m in messages %}{{ m.content }}<|im_start|>{% endfor %}")
    assert opened(folder).tokenizer().enders[1] == ("chat template 'tool_use'",)


def test_n1_a_bos_that_begins_the_next_turn_ends_none(folder: Path, opened: Open) -> None:
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ bos_token + m.content }}{% endfor %}")
    assert opened(folder).tokenizer().eos == (2,)


def test_n24_a_template_without_an_end_of_turn_and_no_key(folder: Path, opened: Open) -> None:
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}\n{% endfor %}")
    edit(folder / "tokenizer_config.json", eos_token=None)
    edit(folder / "generation_config.json", eos_token_id=None)
    edit(folder / "config.json", eos_token_id=None)
    assert opened(folder).tokenizer().enders == {}


@pytest.mark.parametrize("value", [-1, 4294967295])
def test_n3_no_token_written_as_a_number_in_a_folder(folder: Path, opened: Open, value: int) -> None:
    edit(folder / "config.json", eos_token_id=[value, 5], bos_token_id=value)
    edit(folder / "generation_config.json", eos_token_id=value)
    path = folder / "tokenizer_config.json"
    settings = {key: item for key, item in json.loads(path.read_text()).items() if key != "bos_token"}
    path.write_text(json.dumps(settings))
    files = opened(folder).tokenizer()
    assert (files.bos, files.eos) == (None, (2, 5))
    assert f"config.json: eos_token_id is {value}, which means that there is none" in files.notes
    assert f"config.json: bos_token_id is {value}, which means that there is none" in files.notes


@pytest.mark.parametrize("value", [-1, 4294967295])
def test_n3_no_token_written_as_a_number_in_a_gguf_file(value: int) -> None:
    keys = ("padding_token_id", "unknown_token_id", "eom_token_id")
    values = published.phi3() | {f"tokenizer.ggml.{key}": value for key in keys}
    files = rebuild_tokenizer(FILE, values)
    assert files.eos == (32000, 32007)
    assert "pad_token" not in files.special
    assert f"model.gguf: tokenizer.ggml.padding_token_id is {value}, which means that there is none" in files.notes
    with pytest.raises(CheckpointError, match="eos_token_id is 4294967294, outside a vocabulary of 32064"):
        rebuild_tokenizer(FILE, published.phi3() | {"tokenizer.ggml.eos_token_id": 4294967294})


def test_an_end_token_outside_the_vocabulary_is_named_before_any_work(folder: Path, opened: Open) -> None:
    edit(folder / "config.json", eos_token_id=5000)
    with pytest.raises(CheckpointError, match=r"end token 5000 \(from config.json\) is not in the .* id is 299"):
        opened(folder).tokenizer()


# ---- marks ----


def edge_of(values: dict[str, Any]) -> Edge:
    files = rebuild_tokenizer(FILE, values)
    return Edge(files.tokenizer, bos=files.bos, eos=files.eos, add_bos=files.add_bos, special=files.special)


def phi3_prompt(values: dict[str, Any], content: str) -> list[int]:
    """A user's words in Phi-3's prompt, marks given by id as a chat does."""
    return edge_of(values).with_bos(edge_of(values).encode_fragments([32010, f"\n{content}", 32007, "\n", 32001, "\n"]))


def test_n2_phi3_s_marks_swallow_the_white_space_behind_them() -> None:
    """The ids are those of transformers and llama.cpp for Phi-3-mini-4k-instruct."""
    assert phi3_prompt(published.phi3(), "Hello") == [1, 32010, 15043, 32007, 32001]
    tokenizer = Tokenizer.from_str(rebuild_tokenizer(FILE, published.phi3()).tokenizer)
    flags = {token.content: (token.lstrip, token.rstrip) for token in tokenizer.get_added_tokens_decoder().values()}
    assert {token for token, found in flags.items() if found == (False, False)} == {"<s>", "<|endoftext|>"}
    assert {found for token, found in flags.items() if token not in ("<s>", "<|endoftext|>")} == {(False, True)}


def test_n2_other_vocabularies_swallow_nothing() -> None:
    values = published.phi3()
    values["tokenizer.ggml.tokens"][32010] = "<|human|>"
    values["general.architecture"] = "llama"
    tokenizer = Tokenizer.from_str(rebuild_tokenizer(FILE, values).tokenizer)
    assert not any(token.lstrip or token.rstrip for token in tokenizer.get_added_tokens_decoder().values())


def test_n2_what_cannot_be_known_is_refused_by_name() -> None:
    values = published.phi3()
    values["tokenizer.ggml.tokens"][32010] = "<|human|>"
    with pytest.raises(CheckpointError, match=r"does not say whether <\|assistant\|> swallows the white space"):
        rebuild_tokenizer(FILE, values)


@pytest.mark.parametrize("types", ["all ordinary", "missing", "one ordinary"])
def test_n17_marks_that_the_file_calls_ordinary_text(types: str) -> None:
    values = published.phi3()
    kinds = values.pop("tokenizer.ggml.token_type")
    if types == "all ordinary":
        values["tokenizer.ggml.token_type"] = np.ones(len(kinds), np.int32)
    if types == "one ordinary":
        kinds[32007] = 1
        values["tokenizer.ggml.token_type"] = kinds
    assert phi3_prompt(values, "Hello") == [1, 32010, 15043, 32007, 32001]
    files = rebuild_tokenizer(FILE, values)
    assert 32007 in files.eos
    assert any("<|end|>" in note and "says are ordinary text" in note for note in files.notes)
    control = edge_of(values).control.ids
    assert {"<s>", "<|user|>", "<|assistant|>", "<|end|>"} <= control.keys()
    assert not {32007, 32010} & set(edge_of(values).encode("<|end|><|user|>")), "text is no mark"


def test_n17_pairs_of_tags_stay_text() -> None:
    values = published.phi3()
    values["tokenizer.ggml.tokens"][32011:32013] = ["<think>", "</think>"]
    values["tokenizer.ggml.token_type"][32011:32013] = 1
    values["tokenizer.chat_template"] += "{% if false %}<think></think>{% endif %}"
    tokenizer = edge_of(values)
    assert {"<think>", "</think>"} <= tokenizer.ordinary_added.keys()
    assert tokenizer.decode([32011, 15043, 32012]).split() == ["<think>", "Hello</think>"]


def test_n17_a_folder_whose_mark_would_be_cut_is_refused(folder: Path, opened: Open) -> None:
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text())
    data["added_tokens"] = [entry for entry in data["added_tokens"] if entry["content"] != "<|im_start|>"]
    path.write_text(json.dumps(data))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("added_tokens_decoder", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match=r"writes <\|im_start\|>, which is token 1, but text with it is cut"):
        opened(folder).tokenizer()
    entry = {"content": "<|im_start|>", "special": True, "normalized": False}
    edit(folder / "tokenizer_config.json", added_tokens_decoder={"1": entry})
    files = opened(folder).tokenizer()
    assert Tokenizer.from_str(files.tokenizer).encode("<|im_start|>").ids == [1]
    assert (
        "tokens that tokenizer_config.json names and tokenizer.json has as ordinary text: <|im_start|>" in files.notes
    )
