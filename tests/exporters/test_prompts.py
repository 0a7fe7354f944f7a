"""`dsedge eval --prompts`: answers side by side, against answers that are made here, and what is no prompt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from edge.bundle import Bundle
from edge.cli import main
from edge.options import GenerateOptions
from edge.pipeline import load
from edge.quality import QualityReport
from exporters.report import measure
from tests.exporters.tiny import load_reference, tiny_llama

pytestmark = pytest.mark.usefixtures("cache")
LIMIT = 12


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    lines = (
        {"text": "The quick brown"},
        {"prompt": "Paris is the"},
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                      {"role": "user", "content": "for index in"}]},
    )  # fmt: skip
    path.write_text("\n\n".join(map(json.dumps, lines)) + "\n")
    return path


def source_answers(folder: Path) -> list[tuple[list[int], list[int]]]:
    """The ids of the three prompts, and what transformers answers to them with the source's weights."""
    model, tokenizer = load_reference(folder), PreTrainedTokenizerFast.from_pretrained(folder)
    chats = (
        [{"role": "user", "content": "Paris is the"}],
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
         {"role": "user", "content": "for index in"}],
    )  # fmt: skip
    ids = [tokenizer("The quick brown", add_special_tokens=False)["input_ids"]]
    ids += [tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False) for chat in chats]
    answers: list[tuple[list[int], list[int]]] = []
    for prompt in ids:
        made: list[int] = []
        while len(made) < LIMIT and made[-1:] != [2]:
            with torch.no_grad():
                made.append(int(model(torch.tensor([[*prompt, *made]])).logits[0, -1].argmax()))
        answers.append((prompt, made))
    return answers


def test_both_models_answer(
    llama_bundle: Bundle, llama_folder: Path, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["eval", str(llama_bundle.path), "--prompts", str(prompts), "--max-tokens", str(LIMIT)]
    assert main([*line, "--against", str(llama_folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["other"], told["limit"]) == ("source", LIMIT)
    assert [item["prompt"] for item in told["answers"]] == ["The quick brown", "Paris is the", "for index in"]
    tokenizer = PreTrainedTokenizerFast.from_pretrained(llama_folder)
    expected = source_answers(llama_folder)
    assert [item["other"] for item in told["answers"]] == [
        tokenizer.decode(ids, skip_special_tokens=True) for _, ids in expected
    ]
    counts = []
    with load(llama_bundle.path) as pipeline:
        for item, (prompt, ids) in zip(told["answers"], expected, strict=True):
            own = [token.id for token in pipeline.tokens(prompt, GenerateOptions(max_tokens=LIMIT, temperature=0))]
            agreed = next((i for i, pair in enumerate(zip(own, ids, strict=False)) if pair[0] != pair[1]), len(own))
            counts.append(agreed)
            assert (item["agreed"], item["tokens"]) == (agreed, len(own))
            assert item["answer"] == tokenizer.decode(own, skip_special_tokens=True)
            assert item["common"] == tokenizer.decode(ids[:agreed], skip_special_tokens=True)
    assert told["agreed"] == sum(counts) / 3


def test_a_bundle_answers_as_itself(llama_bundle: Bundle, prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(llama_bundle.path)
    assert main(["eval", path, "--prompts", str(prompts), "--max-tokens", "5", "--against", path]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1. The quick brown"
    assert lines[1].startswith("   both: ")
    assert lines[-1].startswith("3 of 3 answers are the same; ")
    assert main(["eval", path, "--prompts", str(prompts), "--max-tokens", "5"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("   tiny: ")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "no line holds one"), ("[]\n", "line 1: a line is"), ('{"text": 3}\n', "line 1: a line is"),
        ('\n{"text": "a", "prompt": "b"}\n', "line 2: a line is"), ("{\n", "line 1: "),
        ('{"messages": [3]}\n', "line 1: "), (None, "there is no such file"),
        (json.dumps({"text": "a b c " * 3000}), "the model takes 4096"),
    ],
)  # fmt: skip
def test_what_is_no_prompt(
    content: str | None, told: str, llama_bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.jsonl"
    if content is not None:
        path.write_text(content)
    assert main(["eval", str(llama_bundle.path), "--prompts", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line


def test_prompts_go_with_no_text(llama_bundle: Bundle, prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(llama_bundle.path), "--prompts", str(prompts), "--text", str(prompts)]) == 2
    assert "leave out --text and --report" in capsys.readouterr().err


def test_a_report_of_any_bundle_is_written(
    llama_bundle: Bundle, llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "TOKENS", 512)
    line = ["eval", str(llama_bundle.path), "--report", str(tmp_path / "out"), "--against"]
    assert main([*line, str(llama_folder)]) == 2  # the folder is to be there
    (tmp_path / "out").mkdir()
    assert main([*line, str(llama_folder)]) == 0
    found = QualityReport.from_json(json.loads((tmp_path / "out" / "quality.json").read_text(encoding="utf-8")))
    assert found.schemes == llama_bundle.manifest.quality.schemes
    assert found.measured is not None
    assert [row.text for row in found.measured.short()] == ["prose", "code", "dialogue"]
    assert found.costs is not None
    assert "<svg" in (tmp_path / "out" / "quality.html").read_text(encoding="utf-8")
    # Between bundles there is no source whose parts could be weighed.
    assert main([*line, str(llama_bundle.path)]) == 0
    found = QualityReport.from_json(json.loads((tmp_path / "out" / "quality.json").read_text(encoding="utf-8")))
    assert found.costs is None


def test_another_vocabulary_is_refused(llama_bundle: Bundle, prompts: Path, tmp_path: Path) -> None:
    other = tiny_llama(tmp_path / "other", vocab_size=310)
    assert main(["eval", str(llama_bundle.path), "--prompts", str(prompts), "--against", str(other)]) == 2
