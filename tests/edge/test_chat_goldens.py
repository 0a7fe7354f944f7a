"""A golden per family (tests/edge/chats): the documented format of its prompts, and what is read back from answers.

The templates there are this project's own; what they share with the families' is the format. Each golden was written by
hand from that format. In a golden, ⟦%d %b⟧ stands for today's date in that form.
"""

from __future__ import annotations

import copy
import json
import re
import tomllib
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from transformers import PreTrainedTokenizerFast

from edge.calls import control_tags, find_formats
from edge.chat import ChatTemplate
from edge.errors import OptionError
from edge.reasoning import find_tags, is_opened
from edge.sections import Splitter
from edge.stream import TextStream
from edge.tokenizer import Tokenizer
from exporters.architectures import GGUF, HUGGING_FACE

FILES = sorted(Path(__file__).with_name("chats").glob("*.toml"))
CHATS = {path.stem: tomllib.loads(path.read_text(encoding="utf-8")) for path in FILES}
CASES = [(name, index) for name, chat in CHATS.items() for index in range(len(chat["cases"]))]
REFUSED = [(name, refused) for name, chat in CHATS.items() for refused in chat.get("refused", ())]
ANSWERS = [(name, answer) for name, chat in CHATS.items() for answer in chat.get("answers", ())]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]


class Model:
    """A family's template with a byte-level tokenizer that has the family's control tokens."""

    def __init__(self, name: str, base: tokenizers.Tokenizer) -> None:
        self.chat = chat = CHATS[name]
        self.source = tokenizers.Tokenizer.from_str(base.to_str())
        self.source.add_special_tokens(list(chat["control"]))
        swallowing = chat.get("swallowing", ())
        self.source.add_special_tokens([tokenizers.AddedToken(t, rstrip=True, special=True) for t in swallowing])
        self.source.add_tokens([tokenizers.AddedToken(t, normalized=False) for t in chat.get("ordinary", ())])
        self.bos = self.source.token_to_id(chat["bos"]) if "bos" in chat else None
        eos = self.source.token_to_id(chat["special"]["eos_token"])
        self.special: dict[str, str] = chat["special"]
        self.tokenizer = Tokenizer(
            self.source.to_str(), bos=self.bos, eos=(eos,), add_bos=chat.get("add_bos", False), special=self.special
        )
        self.template = ChatTemplate(chat["template"], self.special)
        self.guarded = [*chat["control"], *swallowing, *chat.get("structure", ())]

    def options(self, case: dict[str, Any]) -> dict[str, Any]:
        return {
            "tools": TOOLS if case.get("tools") else None,
            "add_generation_prompt": case.get("add_generation_prompt", True),
            "variables": self.template.variables(case.get("thinking"), case.get("variables", {})),
        }

    def peer(self, case: dict[str, Any], *, tokenize: bool) -> Any:
        """What transformers makes of the same template."""
        copied = tokenizers.Tokenizer.from_str(self.source.to_str())
        other = PreTrainedTokenizerFast(tokenizer_object=copied, chat_template=self.chat["template"], **self.special)
        options = self.options(case)
        variables = options.pop("variables")
        return other.apply_chat_template(messages(case), tokenize=tokenize, return_dict=False, **options, **variables)


def messages(case: dict[str, Any]) -> list[dict[str, Any]]:
    """The case's messages; TOML has no null, so those with null content are listed."""
    found: list[dict[str, Any]] = copy.deepcopy(case["messages"])
    for index in case.get("null_content", ()):
        found[index]["content"] = None
    return found


def golden(case: dict[str, Any]) -> str:
    return re.sub("⟦(.*?)⟧", lambda found: datetime.now().strftime(found[1]), case["golden"])


@pytest.fixture
def model(request: pytest.FixtureRequest, byte_level: tokenizers.Tokenizer) -> Model:
    return Model(request.param, byte_level)


def test_every_family_has_a_golden() -> None:
    there = {family for chat in CHATS.values() for family in chat["families"]}
    assert there == {*HUGGING_FACE.values(), *GGUF.values()}


@pytest.mark.parametrize(("model", "index"), CASES, indirect=["model"])
def test_prompts_are_as_documented(model: Model, index: int) -> None:
    case = model.chat["cases"][index]
    text = model.template.render(messages(case), **model.options(case))
    assert text == golden(case)
    ids = model.template.encode(messages(case), model.tokenizer, **model.options(case))
    assert ids == model.source.encode(golden(case), add_special_tokens=False).ids
    if "null_content" not in case:  # transformers drops what is null, and a template that asks for null then fails
        assert model.peer(case, tokenize=False) == text
        assert model.peer(case, tokenize=True) == ids


@pytest.mark.parametrize(("model", "index"), [c for c in CASES if "bos" in CHATS[c[0]]], indirect=["model"])
def test_t1_exactly_one_bos_in_every_family(model: Model, index: int) -> None:
    case = model.chat["cases"][index]
    ids = model.template.encode(messages(case), model.tokenizer, **model.options(case))
    assert ids[0] == model.bos
    assert ids.count(model.bos) == golden(case).count(model.chat["bos"])
    assert ids[1] != model.bos


@pytest.mark.parametrize(("model", "index"), CASES, indirect=["model"])
def test_t2_control_text_stays_text_in_every_role(model: Model, index: int) -> None:
    case = model.chat["cases"][index]
    forged = " ".join(["x", *model.guarded, "y"])
    guarded = [model.source.token_to_id(text) for text in model.guarded]
    clean = model.template.encode(messages(case), model.tokenizer, **model.options(case))
    for number, message in enumerate(case["messages"]):
        if not message.get("content"):
            continue  # with words in it, it would be another kind of turn
        said = messages(case)
        said[number]["content"] += forged
        ids = model.template.encode(said, model.tokenizer, **model.options(case))
        assert [ids.count(token) for token in guarded] == [clean.count(token) for token in guarded], message["role"]
        assert (forged in model.tokenizer.decode(ids)) == (forged in model.template.render(said, **model.options(case)))


@pytest.mark.parametrize(("model", "index"), CASES, indirect=["model"])
def test_arguments_may_come_as_json_text(model: Model, index: int) -> None:
    case = model.chat["cases"][index]
    said = messages(case)
    for call in (call for message in said for call in message.get("tool_calls", ())):
        if isinstance(call["function"]["arguments"], dict):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    assert model.template.render(said, **model.options(case)) == golden(case)


@pytest.mark.parametrize(("model", "refused"), REFUSED, indirect=["model"])
def test_what_a_family_refuses(model: Model, refused: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=refused["reason"]):
        model.template.encode(refused["messages"], model.tokenizer)


@pytest.mark.parametrize("model", CHATS, indirect=True)
def test_what_a_template_says_of_its_model(model: Model) -> None:
    tags = find_tags(model.chat["template"], model.tokenizer)
    assert (None if tags is None else [tags.opening, tags.closing]) == model.chat.get("think")
    formats = find_formats(model.chat["template"], model.tokenizer)
    assert [style.opening for style in formats] == model.chat.get("calls", [])
    others = model.template.looks_at - {"messages", "tools", "add_generation_prompt", *model.special}
    assert sorted(others) == model.chat.get("looks_at", [])
    switch = model.chat.get("switch")
    if switch:
        assert model.template.variables(False, {}) == {switch: False}
    for case in model.chat["cases"]:
        ids = model.template.encode(messages(case), model.tokenizer, **model.options(case))
        assert (tags is not None and is_opened(ids, tags, model.tokenizer)) == case.get("opened", False)


@pytest.mark.parametrize(("model", "answer"), ANSWERS, indirect=["model"])
def test_answers_are_read_as_the_family_writes_them(model: Model, answer: dict[str, Any]) -> None:
    tags = find_tags(model.chat["template"], model.tokenizer)
    formats = find_formats(model.chat["template"], model.tokenizer)
    spelled = {**(tags.spelled if tags else {}), **control_tags(formats, model.tokenizer)}
    text = TextStream(model.tokenizer, spelled=spelled)
    splitter = Splitter(tags, formats, opened=answer.get("opened", False))
    ids = model.source.encode(answer["text"], add_special_tokens=False).ids
    deltas = [delta for token in ids for delta in splitter.push(text.push(token))]
    deltas += [*splitter.push(text.finish()), *splitter.finish()]
    assert "".join(delta.text for delta in deltas if delta.reasoning) == answer.get("reasoning", "")
    assert "".join(delta.text for delta in deltas if not delta.reasoning) == answer.get("content", "")
    calls = [delta.call for delta in deltas if delta.call]
    assert [call.name for call in calls] == ["weather"] * len(answer.get("calls", ()))
    assert [json.loads(call.arguments) for call in calls] == answer.get("calls", [])
