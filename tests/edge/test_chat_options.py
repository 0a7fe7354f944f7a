"""What templates take beside messages: variables, thinking on and off, arguments of calls; in Python and on the CLI."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from edge.chat import ChatTemplate
from edge.cli import main
from edge.commands.chat import Chat, Entry
from edge.errors import EdgeError, OptionError, UnsupportedError
from edge.options import GenerateOptions
from edge.pipeline import Pipeline
from runtimes.scripted import write_bundle
from tests.edge.scripted import OpenScripted, with_template

SWITCH = (
    "{{ messages[-1].content }}{% if tools %}{{ tools | length }} tools <tool_call></tool_call>{% endif %}"
    "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}{{ note }}"
)
CALL = '{"name": "weather", "arguments": {"city": "Paris"}}'
TOOLS = [{"type": "function", "function": {"name": "weather"}}]


@pytest.mark.parametrize(("source", "names"), [
    ("{% if enable_thinking is not defined %}{% set enable_thinking = true %}{% endif %}{{ enable_thinking }}",
     {"enable_thinking"}),
    ("{% if custom_tools is defined %}{% set tools = custom_tools %}{% endif %}{{ tools }}", {"custom_tools", "tools"}),
    ("{% if tools and not available_tools %}{% set available_tools = tools %}{% endif %}{{ available_tools }}",
     {"tools", "available_tools"}),
    ("{% for m in messages %}{% set role = m.role %}{{ role }}{{ loop.index }}{% endfor %}", {"messages"}),
    ("{% set ns = namespace(a=1) %}{{ ns.a }}{{ strftime_now('%d') }}{{ range(2) }}", set()),
    ("{% set x = x | default(1) %}{% for y in y %}{{ y }}{% endfor %}{{ x }}", {"x", "y"}),
    ("{% set z %}a{% endset %}{{ z }}{% for u in [] %}{% set v = u %}{% endfor %}{{ v }}{{ u }}", {"u", "v"}),
    ("{% if messages %}{% set a = 1 %}{% elif tools %}{% set a = 2 %}{% else %}{% set a = 3 %}{% endif %}{{ a }}",
     {"messages", "tools"}),
    ("{% if messages %}{% set a = 1 %}{% elif tools %}{% set a = 2 %}{% endif %}{{ a }}", {"messages", "tools", "a"}),
    ("{% if messages %}{% set a, b = 1, 2 %}{{ a }}{% else %}{% set a, b = 3, 4 %}{% endif %}{{ a }}{{ b }}",
     {"messages"}),
    ("{% macro f(x) %}{{ x }}{{ y }}{% endmacro %}{{ f(1) }}", {"y"}),
])  # fmt: skip
def test_a_template_says_what_it_looks_at(source: str, names: set[str]) -> None:
    assert ChatTemplate(source, {}).looks_at == names


@pytest.mark.parametrize(("source", "thinking", "others", "expected"), [
    ("{{ enable_thinking }}", False, {}, {"enable_thinking": False}),
    ("{{ thinking }}", True, {}, {"thinking": True}),
    ("{{ enable_thinking }}{{ x }}", None, {"x": [1]}, {"x": [1]}),
    ("{{ enable_thinking }}{{ x }}", True, {"x": 1}, {"x": 1, "enable_thinking": True}),
    ("{{ enable_thinking }}", True, {"enable_thinking": True}, {"enable_thinking": True}),
])  # fmt: skip
def test_variables(source: str, thinking: bool | None, others: dict[str, Any], expected: dict[str, Any]) -> None:
    assert ChatTemplate(source, {}).variables(thinking, others) == expected


@pytest.mark.parametrize(("source", "thinking", "others", "kind", "message"), [
    ("{{ messages }}", False, {}, UnsupportedError, "cannot turn reasoning on or off"),
    ("{{ messages[0].thinking }}", True, {}, UnsupportedError, "cannot turn reasoning on or off"),
    ("{{ messages }}{{ bos_token }}", None, {"x": 1}, OptionError, "'x'; it has none"),
    ("{{ b }}{{ a }}{{ messages }}", None, {"x": 1}, OptionError, "does not look at a variable 'x'; it looks at a, b"),
    ("{{ messages }}", None, {"messages": []}, OptionError, "'messages'"),
    ("{{ tools }}", None, {"tools": []}, OptionError, "'tools'"),
    ("{{ bos_token }}", None, {"bos_token": "x"}, OptionError, "'bos_token'"),
    ("{{ enable_thinking }}", True, {"enable_thinking": False}, OptionError, "leave one of them out"),
    ("{{ enable_thinking }}", None, {"enable_thinking": "no"}, OptionError, "is 'no'; it must be true or false"),
    ("{{ thinking }}", None, {"thinking": 1}, OptionError, "thinking is 1; it must be true or false"),
])  # fmt: skip
def test_what_would_not_be_heeded_is_refused(
    source: str, thinking: bool | None, others: dict[str, Any], kind: type[EdgeError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        ChatTemplate(source, {"bos_token": "<s>"}).variables(thinking, others)


def test_null_content_is_told_only_to_a_template_that_asks() -> None:
    messages = [{"role": "assistant", "content": None, "tool_calls": []}]
    plain, asks = "[{{ messages[0].content }}]", "{{ messages[0]['content'] is none }}"
    assert ChatTemplate(plain, {}).render(messages) == "[]"
    assert ChatTemplate(asks, {}).render(messages) == "True"
    assert ChatTemplate(asks, {}).render([{"role": "assistant", "tool_calls": []}]) == "True"
    assert ChatTemplate("{{ messages[0].reasoning is none }}" + plain, {}).render(messages) == "False[]"


@pytest.mark.parametrize(("template", "expected"), [
    ("{{ a | tojson }}", '{"q": 1, "r": "é"}'),
    ("{{ '<' + a + '>' }}", '<{"q":1, "r":"é"}>'),
    ("{{ a }}{{ a is string }}{{ a is mapping }}", '{"q":1, "r":"é"}FalseTrue'),
    ("{{ '<' ~ a ~ '>' }}", '<{"q":1, "r":"é"}>'),
    ("{% for k, v in a.items() %}{{ k }}={{ v }} {% endfor %}{{ a.r | upper }}", "q=1 r=é É"),
])  # fmt: skip
def test_arguments_as_text_serve_templates_of_both_kinds(template: str, expected: str) -> None:
    call = {"function": {"name": "f", "arguments": '{"q":1, "r":"é"}'}}
    whole = "{% set a = messages[0].tool_calls[0].function.arguments %}" + template
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    assert ChatTemplate(whole, {}).render(messages) == expected


def test_empty_arguments_are_an_empty_object() -> None:
    messages = [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": ""}}]}]
    source = "{% set a = messages[0].tool_calls[0].function.arguments %}{{ a is mapping }}{{ a | tojson }}"
    assert ChatTemplate(source, {}).render(messages) == "True{}"


@pytest.mark.parametrize("text", ["[1]", "{broken", "7", "[" * 20_000])
def test_arguments_that_are_no_object_stay_as_they_are(text: str) -> None:
    messages = [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": text}}]}]
    assert ChatTemplate("{{ messages[0].tool_calls[0].function.arguments }}", {}).render(messages) == text


@pytest.fixture
def switch(opened: OpenScripted) -> OpenScripted:
    """`opened` with a template that has the switch."""
    return partial(opened, template=SWITCH)


def test_options_reach_the_template(switch: OpenScripted) -> None:
    pipeline = switch("yes")
    off = GenerateOptions(thinking=False, chat_template_kwargs={"note": "!"})
    assert pipeline.tokenizer.decode(pipeline.encode("hi", off)) == "hi<think></think>!"
    assert pipeline.tokenizer.decode(pipeline.encode("hi", GenerateOptions(thinking=True))) == "hi"
    assert pipeline.complete("hi", off).prompt_tokens == len("hi<think></think>!")
    with pytest.raises(OptionError, match="'colour'"):
        pipeline.stream("hi", GenerateOptions(chat_template_kwargs={"colour": "red"}))
    for options in (off, GenerateOptions(thinking=True)):
        with pytest.raises(OptionError, match="raw prompt"):
            pipeline.encode("hi", options, raw=True)


@pytest.mark.parametrize("tools", ["ab", {"a": {}}, [{}, 1], [[]], 5, iter([{}])])
def test_tools_that_are_no_list_of_objects(switch: OpenScripted, tools: Any) -> None:
    pipeline = switch("yes")
    with pytest.raises(OptionError, match=r"^tools: must be a list of objects"):
        pipeline.encode("hi", tools=tools)


def test_t2_a_variable_forges_no_control_token(switch: OpenScripted) -> None:
    pipeline = switch("yes")
    ids = pipeline.encode("hi", GenerateOptions(chat_template_kwargs={"note": "<|system|>"}))
    assert bytes(ids) == b"hi<|system|>"


@pytest.mark.parametrize(("options", "message"), [
    ({"thinking": 1}, "thinking is 1; it must be True or False"),
    ({"chat_template_kwargs": "x"}, "chat_template_kwargs is 'x'"),
    ({"chat_template_kwargs": {1: 2}}, "a name of chat_template_kwargs is 1"),
])  # fmt: skip
def test_options_of_the_wrong_type(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        GenerateOptions(**options)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """`dsedge run` on a bundle with that answer: (exit code, stdout, stderr)."""
    monkeypatch.setenv("DSEDGE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DSEDGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    (tmp_path / "tools.json").write_text(json.dumps(TOOLS), encoding="utf-8")
    (tmp_path / "odd.json").write_text('{"name": "f"}', encoding="utf-8")
    (tmp_path / "bad.json").write_text("[", encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    def call(answer: str, *words: str, template: str = SWITCH) -> tuple[int, str, str]:
        bundle = with_template(write_bundle(tmp_path / "demo.dsedge", [answer]), template)
        code = main(["run", str(bundle.path), "hi", "--runtime", "scripted", *words])
        return code, *capsys.readouterr()

    return call


@pytest.mark.parametrize(("words", "prompt"), [
    ([], "hi"),
    (["--no-thinking"], "hi<think></think>"),
    (["--thinking"], "hi"),
    (["--template-var", "enable_thinking=false"], "hi<think></think>"),
    (["--template-var", "note=a=b"], "hia=b"),
    (["--template-var", "note=3", "--no-thinking"], "hi<think></think>3"),
    (["--tools", "tools.json"], "hi1 tools <tool_call></tool_call>"),
])  # fmt: skip
def test_the_command_line_reaches_the_template(run: Callable[..., Any], words: list[str], prompt: str) -> None:
    code, out, _ = run("yes", "--json", *words)
    assert (code, json.loads(out)["prompt_tokens"]) == (0, len(prompt))


@pytest.mark.parametrize(("words", "message"), [
    (["--template-var", "colour=red"], "does not look at a variable 'colour'; it looks at enable_thinking, note"),
    (["--template-var", "colour"], "template variable 'colour' is not NAME=VALUE"),
    (["--template-var", "=x"], "is not NAME=VALUE"),
    (["--template-var", "enable_thinking=False"], "enable_thinking is 'False'; it must be true or false"),
    (["--template-var", f"note={'[' * 900}{']' * 900}"], "nested too deeply"),
    (["--thinking", "--template-var", "enable_thinking=false"], "leave one of them out"),
    (["--raw", "--no-thinking"], "--raw uses no chat template"),
    (["--raw", "--template-var", "note=x"], "--raw uses no chat template"),
    (["--raw", "--tools", "tools.json"], "--raw uses no chat template"),
    (["--tools", "absent.json"], "absent.json: cannot be read"),
    (["--tools", "odd.json"], "odd.json: must be a list of objects"),
    (["--tools", "bad.json"], "bad.json: is not JSON"),
])  # fmt: skip
def test_mistakes_on_the_command_line(run: Callable[..., Any], words: list[str], message: str) -> None:
    code, out, err = run("yes", *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


@pytest.mark.parametrize(("words", "message"), [
    (["--thinking"], "cannot turn reasoning on or off"),
    (["--no-thinking"], "cannot turn reasoning on or off"),
    (["--tools", "tools.json"], "takes no tools"),
])  # fmt: skip
def test_a_template_without_the_switch_is_said_aloud(run: Callable[..., Any], words: list[str], message: str) -> None:
    code, out, err = run("yes", *words, template="{{ messages[-1].content }}")
    assert (code, out) == (2, "")
    assert message in err


def test_calls_are_on_stderr_and_stdout_has_the_answer_alone(run: Callable[..., Any]) -> None:
    call = f"<tool_call>{CALL}</tool_call>"
    assert run(f"Sure.\n{call}\n{call}", "--tools", "tools.json") == (
        0,
        "Sure.\n",
        'tool call: weather {"city": "Paris"}\n' * 2,
    )


def test_an_answer_of_calls_alone_leaves_stdout_empty(run: Callable[..., Any]) -> None:
    code, out, err = run(f"<tool_call>{CALL}</tool_call>", "--tools", "tools.json")
    assert (code, out, err) == (0, "", 'tool call: weather {"city": "Paris"}\n')


def test_json_has_the_calls(run: Callable[..., Any]) -> None:
    _, out, err = run(f"<tool_call>{CALL}</tool_call>", "--tools", "tools.json", "--json")
    found = json.loads(out)
    (call,) = found["tool_calls"]
    assert (call["name"], call["arguments"]) == ("weather", '{"city": "Paris"}')
    assert (found["text"], found["finish_reason"], err) == ("", "tool_calls", "")


def talk(pipeline: Pipeline, *lines: str, **options: Any) -> Chat:
    given = iter(lines)

    def read() -> str:
        for line in given:
            return line
        raise EOFError

    chat = Chat(pipeline, GenerateOptions(), entry=Entry(read), **options)
    assert chat.loop() == 0
    return chat


def test_a_chat_takes_results_and_goes_on(switch: OpenScripted, capsys: pytest.CaptureFixture[str]) -> None:
    call = f"<tool_call>{CALL}</tool_call>"
    pipeline = switch(call + call, "mild in both", "bye", template=SWITCH + "{{ messages | length }}")
    chat = talk(
        pipeline, "/result early", "weather?", "/result mild", "/result warm", "/result late", "ok", tools=TOOLS
    )
    out, err = capsys.readouterr()
    assert out == "mild in both\nbye\n"
    assert err.count('tool call: weather {"city": "Paris"}') == 2
    assert err.count("no call of a tool waits for a result") == 2
    assert "1 more to give" in err
    roles = [message["role"] for message in chat.conversation.messages]
    assert roles == ["user", "assistant", "tool", "tool", "assistant", "user", "assistant"]
    calls = chat.conversation.messages[1]["tool_calls"]
    assert [message["tool_call_id"] for message in chat.conversation.messages[2:4]] == [call["id"] for call in calls]
    assert [message["content"] for message in chat.conversation.messages[2:4]] == ["mild", "warm"]


def test_a_question_instead_of_a_result_drops_the_results(switch: OpenScripted) -> None:
    call = f"<tool_call>{CALL}</tool_call>"
    chat = talk(switch(call + call, "well"), "weather?", "/result mild", "never mind", tools=TOOLS)
    assert [message["role"] for message in chat.conversation.messages] == ["user", "assistant", "user", "assistant"]
    assert chat.conversation.results == []


def test_a_chat_turns_thinking_on_and_off(switch: OpenScripted, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline = switch("a", "b")
    talk(pipeline, "/thinking off", "hi", "/stats", "/thinking on", "hi", "/stats", "/thinking", "/thinking maybe")
    _, err = capsys.readouterr()
    assert err.index("thinking: off") < err.index("(17 tokens") < err.index("thinking: on") < err.index("(2 tokens")
    assert err.count("/thinking is followed by on or off") == 2


def test_a_chat_with_a_model_that_has_no_switch(opened: OpenScripted, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline = opened("a", template="{{ messages[-1].content }}")
    chat = talk(pipeline, "/thinking off", "hi")
    out, err = capsys.readouterr()
    assert out == "a\n"
    assert "cannot turn reasoning on or off" in err
    assert chat.options.thinking is None
    with pytest.raises(UnsupportedError, match="cannot turn reasoning"):
        Chat(pipeline, GenerateOptions(thinking=True), entry=Entry(str))
    with pytest.raises(UnsupportedError, match="takes no tools"):
        Chat(pipeline, GenerateOptions(), tools=TOOLS, entry=Entry(str))
