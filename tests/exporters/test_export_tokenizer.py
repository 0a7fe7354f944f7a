"""What an export keeps of a source's tokenizer: its templates, its ends of turns, and ids that have a row."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer

from edge.bundle import Bundle
from edge.cli import main
from edge.errors import CheckpointError
from exporters.export import export
from tests.exporters.tiny import tiny_llama

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "model")


def edit(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**(json.loads(path.read_text()) if path.is_file() else {}), **values}))


def notes(bundle: Bundle) -> str:
    return "\n".join(bundle.manifest.quality.notes)


def test_n5_every_template_is_in_the_bundle(folder: Path, tmp_path: Path) -> None:
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}")
    (folder / "chat_template.jinja").unlink()
    named = [{"name": "default", "template": "{{ messages }}"}, {"name": "rag", "template": "{{ documents }}"}]
    edit(folder / "tokenizer_config.json", chat_template=named)
    bundle = export(folder, tmp_path / "m.dsedge")
    assert bundle.read_text("chat_template.jinja") == "{{ messages }}"
    assert bundle.read_text("chat_templates/tool_use.jinja") == "{{ tools }}"
    assert bundle.read_text("chat_templates/rag.jinja") == "{{ documents }}"
    assert {name for name in bundle.manifest.files if "template" in name} == {
        "chat_template.jinja", "chat_templates/rag.jinja", "chat_templates/tool_use.jinja"
    }  # fmt: skip


def test_n1_inspect_lists_every_end_and_where_it_was_found(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(folder / "config.json", eos_token_id=0)
    edit(folder / "generation_config.json", eos_token_id=0)
    edit(folder / "tokenizer_config.json", eos_token="<|endoftext|>")
    export(folder, tmp_path / "m.dsedge")
    assert main(["inspect", str(tmp_path / "m.dsedge"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ends"] == [
        {
            "id": 0,
            "token": "<|endoftext|>",
            "found": ["generation_config.json", "config.json", "tokenizer_config.json (eos_token)"],
        },
        {"id": 2, "token": "<|im_end|>", "found": ["chat template"]},
    ]
    assert main(["inspect", str(tmp_path / "m.dsedge")]) == 0
    assert "2 <|im_end|> (chat template)" in capsys.readouterr().out


def test_n24_no_end_of_turn_is_said_at_export_and_at_every_run(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}\n{% endfor %}")
    for name in ("config.json", "generation_config.json"):
        edit(folder / name, eos_token_id=None)
    edit(folder / "tokenizer_config.json", eos_token=None)
    assert main(["export", str(folder), "-o", str(tmp_path / "m.dsedge")]) == 0
    assert "no token is known that ends a turn" in capsys.readouterr().out
    with open(os.devnull) as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        assert main(["run", str(tmp_path / "m.dsedge"), "Paris", "--max-tokens", "2"]) == 0
    assert "no token is known that ends this model's turn" in capsys.readouterr().err


def test_n18_fewer_rows_than_tokens(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "model", vocab_size=299)
    with pytest.raises(CheckpointError, match=r"has the id 299, but the embedding has 299 rows"):
        export(folder, tmp_path / "m.dsedge")
    assert not (tmp_path / "m.dsedge").exists()


def test_n18_added_tokens_for_other_parts_of_a_model_need_no_row(folder: Path, tmp_path: Path) -> None:
    """Gemma 3's small models have a token for images behind the last row of their embedding."""
    path = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.add_special_tokens([AddedToken("<image>", normalized=False)])
    tokenizer.save(str(path))
    bundle = export(folder, tmp_path / "m.dsedge")
    assert Tokenizer.from_file(str(bundle.path / "tokenizer.json")).get_vocab_size() == 300
    assert "left out: <image>" in notes(bundle)
    (folder / "chat_template.jinja").write_text("{% for m in messages %}<image>{{ m.content }}<|im_end|>{% endfor %}")
    with pytest.raises(CheckpointError, match="token '<image>' has the id 300"):
        export(folder, tmp_path / "m.dsedge")
