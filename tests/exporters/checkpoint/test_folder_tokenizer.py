"""What a folder says about its tokenizer, compared with transformers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from edge.errors import CheckpointError
from exporters.checkpoint import Checkpoint
from tests.exporters.tiny import TEMPLATE

Open = Callable[[Path], Checkpoint]


@pytest.fixture
def folder(llama_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(llama_folder, tmp_path / "model"))


def edit(path: Path, **values: Any) -> None:
    data = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**data, **values}))


@pytest.mark.parametrize(("config", "expected"), [(5, (2, 5, 7, 9)), ([11, 5], (2, 5, 7, 9, 11)), (None, (2, 5, 7, 9))])
def test_t6_every_end_token_is_united(folder: Path, opened: Open, config: Any, expected: tuple[int, ...]) -> None:
    edit(folder / "generation_config.json", eos_token_id=[5, 9])
    edit(folder / "config.json", eos_token_id=config)
    token = Tokenizer.from_file(str(folder / "tokenizer.json")).id_to_token(7)
    edit(folder / "tokenizer_config.json", eos_token={"content": token, "lstrip": False})
    files = opened(folder).tokenizer()
    assert files.eos == expected
    assert files.special["eos_token"] == token
    named = ("config.json",) if config is not None else ()
    assert files.enders[5] == ("generation_config.json", *named)
    assert (files.enders[7], files.enders[2]) == (("tokenizer_config.json (eos_token)",), ("chat template",))


@pytest.mark.parametrize("form", ["file", "text", "list"])
def test_chat_template_in_each_of_its_places(folder: Path, opened: Open, form: str) -> None:
    if form != "file":
        (folder / "chat_template.jinja").unlink()
        named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": TEMPLATE}]
        edit(folder / "tokenizer_config.json", chat_template=TEMPLATE if form == "text" else named)
    assert opened(folder).tokenizer().chat_template == TEMPLATE
    reference = AutoTokenizer.from_pretrained(folder)
    assert reference.get_chat_template() == TEMPLATE


def test_n5_named_templates_of_each_place(folder: Path, opened: Open) -> None:
    """As transformers has them: files count before the list of the settings."""
    named = [{"name": "tool_use", "template": "from the list"}, {"name": "rag", "template": "rag"}]
    edit(folder / "tokenizer_config.json", chat_template=[*named, {"name": "default", "template": "from the list"}])
    more = folder / "additional_chat_templates"
    more.mkdir()
    (more / "tool_use.jinja").write_text("from a file")
    files = opened(folder).tokenizer()
    assert (files.chat_template, files.chat_templates) == (TEMPLATE, {"tool_use": "from a file", "rag": "rag"})
    reference = AutoTokenizer.from_pretrained(folder)
    assert reference.get_chat_template(tools=[{"name": "x"}]) == "from a file"
    assert reference.get_chat_template() == TEMPLATE
    (more / "..jinja").write_text("x")
    with pytest.raises(CheckpointError, match=r"a chat template is named '\.'"):
        opened(folder).tokenizer()


def test_n5_a_template_in_a_file_of_the_processor(folder: Path, opened: Open) -> None:
    (folder / "chat_template.jinja").unlink()
    edit(folder / "chat_template.json", chat_template="from the processor")
    assert opened(folder).tokenizer().chat_template == "from the processor"


def test_n27_a_template_that_is_not_valid_is_named_when_read(folder: Path, opened: Open) -> None:
    (folder / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(CheckpointError, match="chat template 'default': the chat template is not valid, line 1"):
        opened(folder).tokenizer()


def test_template_list_without_a_default(folder: Path, opened: Open) -> None:
    (folder / "chat_template.jinja").unlink()
    edit(folder / "tokenizer_config.json", chat_template=[{"name": "rag", "template": "x"}])
    with pytest.raises(CheckpointError, match=r'no chat template is named "default" .there are: rag'):
        opened(folder).tokenizer()


@pytest.mark.parametrize("explicit", [None, True, False])
@pytest.mark.parametrize("processor", [True, False])
def test_bos_is_added_exactly_when_transformers_adds_it(
    folder: Path, opened: Open, explicit: bool | None, processor: bool
) -> None:
    if processor:
        bos = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
        text = {"Sequence": {"id": "A", "type_id": 0}}
        special = {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}}
        template = {"type": "TemplateProcessing", "single": [bos, text], "pair": [bos, text], "special_tokens": special}
        edit(folder / "tokenizer.json", post_processor=template)
    if explicit is not None:
        edit(folder / "tokenizer_config.json", add_bos_token=explicit)
    ids = AutoTokenizer.from_pretrained(folder)("a b")["input_ids"]
    files = opened(folder).tokenizer()
    assert files.bos == 0
    assert files.add_bos == (ids[0] == 0) == processor


def test_special_tokens_map_of_older_folders(folder: Path, opened: Open) -> None:
    (folder / "tokenizer_config.json").write_text("{}")
    edit(folder / "special_tokens_map.json", bos_token="<|im_start|>", eos_token={"content": "<|im_end|>"})
    files = opened(folder).tokenizer()
    assert files.special == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    assert (files.bos, files.eos) == (1, (2,))


def test_missing_and_contradictory_parts(folder: Path, opened: Open) -> None:
    edit(folder / "tokenizer_config.json", eos_token="</none>")
    with pytest.raises(CheckpointError, match="eos_token is '</none>', which is not in the vocabulary"):
        opened(folder).tokenizer()
    edit(folder / "tokenizer_config.json", eos_token="<|im_end|>")
    edit(folder / "generation_config.json", eos_token_id="two")
    with pytest.raises(CheckpointError, match=r"generation_config\.json: eos_token_id: 'two' is no list of token ids"):
        opened(folder).tokenizer()
    (folder / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: the tokenizer cannot be read"):
        opened(folder).tokenizer()
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json; make one with transformers"):
        opened(folder).tokenizer()
