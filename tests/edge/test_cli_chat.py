"""The chat's commands, and what it does when its context is full (N14), over a script."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge.commands.chat import Chat, Entry
from edge.commands.conversation import Conversation
from edge.options import GenerateOptions
from edge.pipeline import Pipeline
from tests.edge.scripted import OpenScripted

Talk = Callable[..., Chat]
ECHO = "{% for m in messages %}[{{ m.role[0] }}:{{ m.content }}]{% endfor %}"


@pytest.fixture
def talk() -> Talk:
    def call(pipeline: Pipeline, *lines: str, options: GenerateOptions | None = None, **others: Any) -> Chat:
        given = iter(lines)

        def read() -> str:
            for line in given:
                return line
            raise EOFError

        chat = Chat(pipeline, options or GenerateOptions(), entry=Entry(read), **others)
        assert chat.loop() == 0
        return chat

    return call


def said(chat: Chat) -> list[str]:
    return [message["content"] for message in chat.conversation.messages]


def test_retry_puts_another_answer_in_the_place_of_the_last(opened: OpenScripted, talk: Talk) -> None:
    chat = talk(opened("one", "two", "three"), "a", "b", "/retry")
    assert said(chat) == ["a", "one", "b", "three"]


def test_a_retry_without_an_answer_keeps_the_one_before(opened: OpenScripted, talk: Talk, capsys: Any) -> None:
    chat = talk(opened("one", ""), "/retry", "a", "/retry")
    assert said(chat) == ["a", "one"]
    assert "there is no answer to give anew" in capsys.readouterr().err


def test_undo_takes_turns_back_until_there_is_none(opened: OpenScripted, talk: Talk, capsys: Any) -> None:
    chat = talk(opened("one", "two"), "a", "b", "/undo")
    assert said(chat) == ["a", "one"]
    chat = talk(opened("one"), "a", "/undo", "/undo")
    assert said(chat) == []
    assert "there is no turn to take back" in capsys.readouterr().err


@pytest.mark.parametrize(("line", "sent"), [
    ("//etc/hosts?", "/etc/hosts?"),
    (" /etc/hosts?", "/etc/hosts?"),
    ("  hi  ", "hi"),
    ("// two", "/ two"),
])  # fmt: skip
def test_text_may_begin_with_a_slash(opened: OpenScripted, talk: Talk, line: str, sent: str) -> None:
    assert said(talk(opened("one"), line)) == [sent, "one"]


def test_an_unknown_command_says_which_there_are_and_how_to_send_it(
    opened: OpenScripted, talk: Talk, capsys: Any
) -> None:
    assert said(talk(opened("one"), "/etc/hosts?", "/", "   ")) == []
    err = capsys.readouterr().err
    assert "unknown command /etc/hosts?; known are /help, /clear" in err
    assert "// or a space first" in err


def test_set_changes_and_shows_what_is_generated(opened: OpenScripted, talk: Talk, capsys: Any) -> None:
    lines = ("/set max-tokens 2", "hi", "/set stop ne", "/set temperature hot", "/set max_tokens default", "/set x 1")
    chat = talk(opened("one", "one", "one"), *lines, "hi", "/set")
    assert (said(chat)[1], said(chat)[3]) == ("on", "o")
    assert (chat.options.max_tokens, chat.options.stop) == (None, ("ne",))
    err = capsys.readouterr().err
    assert "temperature is 'hot'; it must be a number" in err
    assert "/set does not know 'x'; it knows max_tokens, temperature" in err
    assert "\nmax_tokens: default\n" in err.partition("stop: ne")[2]


def test_a_system_prompt_is_set_shown_and_removed(opened: OpenScripted, talk: Talk, capsys: Any) -> None:
    pipeline = opened("one", template=ECHO)
    assert talk(pipeline, "/system be brief", "/system", "hi").conversation.system == "be brief"
    assert capsys.readouterr().err.count("system prompt: be brief") == 2
    chat = talk(pipeline, '/system ""', system="be brief")
    assert chat.conversation.system is None
    assert "system prompt: none" in capsys.readouterr().err


def test_help_names_every_command_and_its_other_names(opened: OpenScripted, talk: Talk, capsys: Any) -> None:
    talk(opened("one"), "/?")
    err = capsys.readouterr().err
    for name in ("/help", "/?", "/clear", "/reset", "/retry", "/undo", "/system", "/set", "/thinking", "/result"):
        assert name in err
    for name in ("/save", "/load", "/stats", "/bye", "/quit", "/exit", "Alt-Enter", '"""', "Ctrl-C"):
        assert name in err


@pytest.mark.parametrize("leave", ["/bye", "/quit", "/exit"])
def test_every_word_for_leaving_leaves(opened: OpenScripted, talk: Talk, leave: str) -> None:
    assert said(talk(opened("one"), leave, "hi")) == []


def test_save_asks_before_it_overwrites(opened: OpenScripted, talk: Talk, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "chat.json"
    path.write_text("mine")
    talk(opened("one"), f"/save {path}", "n")
    assert path.read_text() == "mine"
    talk(opened("one"), f"/save {path}", "")
    assert path.read_text() == "mine"
    talk(opened("one"), "hi", f"/save {path}", "y")
    assert [message["content"] for message in json.loads(path.read_text())["messages"]] == ["hi", "one"]
    assert capsys.readouterr().err.count("overwrite it? [y/N]") == 3


def test_load_goes_on_with_what_was_saved(opened: OpenScripted, talk: Talk, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "chat.json"
    talk(opened("one"), "hi", f"/save {path}", system="be brief")
    chat = talk(opened("two"), f"/load {path}", "and?")
    assert (said(chat), chat.conversation.system) == (["hi", "one", "and?", "two"], "be brief")
    path.write_text(json.dumps([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]))
    chat = talk(opened("two"), f"/load {path}")
    assert (said(chat), chat.conversation.system) == (["u"], "s")
    for text in ("{", '"x"', '{"messages": [1]}', '{"messages": [{"role": "a b", "content": ""}]}'):
        path.write_text(text)
        assert said(talk(opened("two"), f"/load {path}")) == []
    assert capsys.readouterr().err.count(f"dsedge: {path}: ") == 4


def prompts(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The contents of the messages of every prompt that was answered."""
    seen: list[list[str]] = []
    stream = Pipeline.stream

    def spy(self: Pipeline, prompt: Any, *others: Any, **named: Any) -> Any:
        seen.append([message["content"] for message in prompt])
        return stream(self, prompt, *others, **named)

    monkeypatch.setattr(Pipeline, "stream", spy)
    return seen


def test_n14_a_full_chat_drops_its_oldest_turns_and_keeps_the_system_prompt(
    opened: OpenScripted, talk: Talk, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """10 tokens of system prompt, 9 of a question, 10 of an answer; 25 of the 100 are to stay free for one.

    The fourth prompt would have 10 + 3 * 19 + 9 = 76; two turns less are 38, not more than half. The sixth likewise.
    """
    seen = prompts(monkeypatch)
    pipeline = opened("answer", template=ECHO, context=100)
    chat = talk(pipeline, *(f"ask {n}" for n in range(6)), system="SYSTEM")
    assert [len(prompt) for prompt in seen] == [2, 4, 6, 4, 6, 4]
    assert all(prompt[0] == "SYSTEM" for prompt in seen)
    assert seen[3] == ["SYSTEM", "ask 2", "answer", "ask 3"]
    assert seen[4] == ["SYSTEM", "ask 2", "answer", "ask 3", "answer", "ask 4"]
    assert seen[5] == ["SYSTEM", "ask 4", "answer", "ask 5"]
    assert len(chat.conversation.messages) == 12  # nothing said is lost for /save
    err = capsys.readouterr().err
    assert err.count("the context of 100 tokens is full: the oldest 2 turns are not sent any more") == 2


def test_n14_a_message_that_is_too_long_alone_says_so_and_drops_nothing(
    opened: OpenScripted, talk: Talk, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    seen = prompts(monkeypatch)
    chat = talk(opened("answer", template=ECHO, context=100), "ask", "x" * 200, "again")
    assert said(chat) == ["ask", "answer", "again", "answer"]
    assert seen[-1] == ["ask", "answer", "again"]
    err = capsys.readouterr().err
    assert "this message is too long: the prompt has 204 tokens and the context holds 100: 104 too many" in err
    assert "--context 1024 holds it (the model takes at most 4096)" in err


def test_n14_a_chat_that_was_asked_to_refuse_names_what_can_be_done(
    opened: OpenScripted, talk: Talk, capsys: Any
) -> None:
    talk(opened("answer", template=ECHO, context=100), *(f"ask {n}" for n in range(6)), drops=False)
    err = capsys.readouterr().err
    assert "the conversation has 104 tokens and the context holds 100" in err
    for way in ("/undo", "/clear", "--context"):
        assert way in err


def test_results_of_tools_stay_with_their_call_when_turns_are_dropped() -> None:
    conversation = Conversation()
    conversation.messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "", "tool_calls": [{}]},
    ]
    result = [{"role": "tool", "content": "r"}]
    assert conversation.drop_oldest(result)
    assert [message["content"] for message in conversation.request(result)] == ["c", "", "r"]
    assert not conversation.drop_oldest(result)
    assert conversation.drop_oldest([{"role": "user", "content": "d"}])
    assert conversation.request() == []
