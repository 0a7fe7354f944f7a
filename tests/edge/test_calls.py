"""Calls of tools in answers: the formats, the splitter that finds them, and how they show in streams and prompts."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.calls import FORMATS, CallFormat, control_tags, find_formats
from edge.options import GenerateOptions
from edge.pipeline import Pipeline
from edge.reasoning import Tags
from edge.results import Result
from edge.sections import Delta, Splitter
from edge.stream import TextStream
from edge.tokenizer import Tokenizer
from runtimes.scripted import SPECIAL
from tests.edge.scripted import OpenScripted

THINK = Tags("<think>", "</think>", {})
HERMES, PHI, GRANITE, MISTRAL, OLMO, PYTHON_TAG, BARE, BARE_TYPED = ((style,) for style in FORMATS)
LLAMA = PYTHON_TAG + BARE + BARE_TYPED
PARIS = '{"name": "weather", "arguments": {"city": "Paris"}}'
ROME = '{"name": "weather", "arguments": {"city": "Rome"}}'
OPEN = [("weather", {"city": "Paris"})]
BOTH = [*OPEN, ("weather", {"city": "Rome"})]
Calls = list[tuple[str, Any]]


def join(deltas: Sequence[Delta]) -> tuple[str, str, Calls]:
    """(reasoning, answer, calls) of pieces."""
    assert all(bool(delta.text) != bool(delta.call) for delta in deltas)
    reasoning = "".join(delta.text for delta in deltas if delta.reasoning)
    answer = "".join(delta.text for delta in deltas if not delta.reasoning)
    return reasoning, answer, [(d.call.name, json.loads(d.call.arguments)) for d in deltas if d.call]


def split(pieces: Sequence[str], formats: Sequence[CallFormat], *, tags: Tags | None = None) -> tuple[str, str, Calls]:
    splitter = Splitter(tags, formats)
    return join([delta for piece in pieces for delta in splitter.push(piece)] + splitter.finish())


WELL: list[tuple[tuple[CallFormat, ...], str, str, Calls]] = [
    (HERMES, f"<tool_call>\n{PARIS}\n</tool_call>", "", OPEN),
    (HERMES, f"I look.\n<tool_call>\n{PARIS}\n</tool_call>\n<tool_call>\n{ROME}\n</tool_call>", "I look.", BOTH),
    (HERMES, f"<tool_call>{PARIS}</tool_call> \nand <b>more</b> ", "and <b>more</b> ", OPEN),
    (HERMES, f"<tool_call>{PARIS}", "", OPEN),  # the closing tag was forgotten
    (HERMES, f"<tool_call>[{PARIS}, {ROME}]</tool_call>", "", BOTH),
    (HERMES, '<tool_call>{"name": "clock", "arguments": {}}</tool_call>', "", [("clock", {})]),
    (HERMES, '<tool_call>{"name": "say", "arguments": {"x": "a \\"</tool_call>\\" \\\\"}}</tool_call>.', ".",
     [("say", {"x": 'a "</tool_call>" \\'})]),
    (PHI, f"<|tool_call|>[{PARIS}, {ROME}]<|/tool_call|>", "", BOTH),
    (PHI, f'<|tool_call|>[{{"type": "function", "function": {PARIS}}}]<|/tool_call|>', "", OPEN),
    (GRANITE, f"<|tool_call|>[{PARIS}, {ROME}]", "", BOTH),
    (GRANITE, f"Yes. <|tool_call|>\n{PARIS}\n", "Yes.", OPEN),
    (MISTRAL, f"[TOOL_CALLS] [{PARIS}, {ROME}]", "", BOTH),
    (MISTRAL, 'ok[TOOL_CALLS]weather[ARGS]{"city": "Paris"}[TOOL_CALLS]weather[ARGS]{"city": "Rome"}', "ok", BOTH),
    (MISTRAL, '[TOOL_CALLS]weather[CALL_ID]abcDEF123[ARGS]{"city": "Paris"}', "", OPEN),
    (MISTRAL, '[TOOL_CALLS]weather{"city": "Paris"}', "", OPEN),
    (MISTRAL, '[TOOL_CALLS]say[ARGS]{"x": "[TOOL_CALLS]"}', "", [("say", {"x": "[TOOL_CALLS]"})]),
    (OLMO, '<function_calls>weather(city="Paris")\nweather(city="Rome")</function_calls>', "", BOTH),
    (OLMO, '<function_calls>[f(a=[1, {"b": null}], b = True, c="(,)")]</function_calls>', "",
     [("f", {"a": [1, {"b": None}], "b": True, "c": "(,)"})]),
    (OLMO, "<function_calls>clock()</function_calls>", "", [("clock", {})]),
    (LLAMA, '{"name": "weather", "parameters": {"city": "Paris"}}', "", OPEN),
    (LLAMA, ' \n{"name": "weather", "parameters": {"city": "Paris"}}; {"name": "weather", "parameters": '
     '{"city": "Rome"}}', "", BOTH),
    (LLAMA, '{"type": "function", "name": "weather", "parameters": {"city": "Paris"}}', "", OPEN),
    (LLAMA, '{"type": "function", "function": {"name": "weather", "parameters": {"city": "Paris"}}}', "", OPEN),
    (LLAMA, '<|python_tag|>{"name": "weather", "parameters": {"city": "Paris"}}', "", OPEN),
    (LLAMA, '<|python_tag|>weather.call(city="Paris")', "", OPEN),
]  # fmt: skip
PYTHON = (
    "{'name': 'f', 'arguments': {'a': True, 'b': [None, (1, -2.5)], 'c': {'d': 'it\\'s \"x\" \\u00e9\\n'}, \"e\": 'é'}}"
)
PYTHON_CALL = [("f", {"a": True, "b": [None, [1, -2.5]], "c": {"d": 'it\'s "x" é\n'}, "e": "é"})]
LITERALS: list[tuple[tuple[CallFormat, ...], str, str, Calls]] = [
    (HERMES, f"<tool_call>\n{PYTHON}\n</tool_call>", "", PYTHON_CALL),
    (HERMES, f"<tool_call>{PYTHON}", "", PYTHON_CALL),
    (HERMES, f"<tool_call>[{PYTHON}, {PYTHON},]</tool_call>", "", PYTHON_CALL * 2),
    (HERMES, "<tool_call>{'name': 'say', 'arguments': {'x': '</tool_call> \"', 'y': \"'\"}}</tool_call>!", "!",
     [("say", {"x": '</tool_call> "', "y": "'"})]),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"a": True, "b": None, "c": [False]}}</tool_call>', "",
     [("f", {"a": True, "b": None, "c": [False]})]),
    (GRANITE, f"<|tool_call|>[{PYTHON}]", "", PYTHON_CALL),
    (MISTRAL, "[TOOL_CALLS]f[ARGS]{'a': None}", "", [("f", {"a": None})]),
    (OLMO, "<function_calls>f(a={'x': [True, None]}, b='it\\'s', c=\"d\", d=(1,))</function_calls>", "",
     [("f", {"a": {"x": [True, None]}, "b": "it's", "c": "d", "d": [1]})]),
    (LLAMA, '{"name": "f", "parameters": {"a": None, "b": \'x\'}}', "", [("f", {"a": None, "b": "x"})]),
]  # fmt: skip
PROSE: list[tuple[tuple[CallFormat, ...], str, str, Calls]] = [
    (HERMES, f"<tool_call>{PARIS}\nI hope this helps.", "I hope this helps.", OPEN),
    (HERMES, f"<tool_call>{PARIS} That's it.</tool_call> Bye.", "That's it. Bye.", OPEN),
    (HERMES, f"<tool_call>{PARIS}, {{oops</tool_call>", ", {oops", OPEN),
    (GRANITE, f"<|tool_call|>[{PARIS}, {ROME}]\nIt's done.", "It's done.", BOTH),
    (MISTRAL, f"[TOOL_CALLS] [{PARIS}] and then", "and then", OPEN),
    (MISTRAL, f"[TOOL_CALLS]weather[ARGS]{{\"city\": \"Paris\"}} so [TOOL_CALLS] [{ROME}]", "so", BOTH),
    (OLMO, '<function_calls>[weather(city="Paris")] ok</function_calls>', "ok", OPEN),
    (OLMO, '<function_calls>weather(city="Paris") f(x=y)</function_calls>', "f(x=y)", OPEN),
    (LLAMA, '{"name": "weather", "parameters": {"city": "Paris"}}\n\nThis calls it.', "This calls it.", OPEN),
    (LLAMA, f"<|python_tag|>{PARIS}; then wait", "; then wait", OPEN),
    (LLAMA, '<|python_tag|>weather.call(city="Paris") # look', "# look", OPEN),
]  # fmt: skip
TEXT = [
    (HERMES, "plain text \n"),
    (HERMES, " a < b and <tool_cal"),
    (HERMES, "write <tool_call> and </tool_call> around it"),
    (HERMES, "<tool_call>\n{'name': 'weather', 'arguments': {'x': it}}\n</tool_call>"),
    (HERMES, '<tool_call>{"name": "weather", "arguments": "Paris"}</tool_call>'),
    (HERMES, '<tool_call>{"name": "weather", "arguments": ["Paris"]}</tool_call>'),
    (HERMES, '<tool_call>{"name": "weather"}</tool_call>'),
    (HERMES, '<tool_call>{"name": 7, "arguments": {}}</tool_call>'),
    (HERMES, f"<tool_call>[{PARIS}, 3]</tool_call>"),
    (HERMES, "x\n\n<tool_call></tool_call>\n"),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>'),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"x": 1e999}}</tool_call>'),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"x": "\\ud83d"}}</tool_call>'),
    (HERMES, f"<tool_call>{'[' * 20_000}</tool_call>"),
    (HERMES, '<tool_call>{"name": "weather", "argum'),
    (HERMES, "<think>" + PARIS),
    (MISTRAL, "[TOOL_CALLS]weather"),
    (MISTRAL, "[TOOL_CALLS]weather[ARGS]Paris"),
    (OLMO, '<function_calls>weather("Paris")</function_calls>'),
    (OLMO, "<function_calls>weather(city=Paris)</function_calls>"),
    (OLMO, '<function_calls>weather(city="Paris"</function_calls>'),
    (LLAMA, '{"name": "Paris", "country": "France"}'),
    (LLAMA, '{"type": "city", "name": "Paris"}'),
    (LLAMA, 'So: {"name": "weather", "parameters": {"city": "Paris"}}'),
    (LLAMA, "<|python_tag|>print(1 + 1)"),
    (HERMES, "<tool_call>{'name': 'f', 'arguments': {1: 2}}</tool_call>"),
    (HERMES, "<tool_call>{'name': 'f', 'arguments': {'a' 'b'}}</tool_call>"),
    (HERMES, "<tool_call>{'name': 'f', 'arguments': {'a': '\\ud83d'}}</tool_call>"),
    (HERMES, "<tool_call>{'name': 'f', 'arguments': {'a': [1 2]}}</tool_call>"),
    (HERMES, f"<tool_call>{'[' * 20_000}'"),
    (HERMES, f"<tool_call>{{'a': {'(' * 20_000}"),
]  # fmt: skip
ALL = [*WELL, *LITERALS, *PROSE, *((formats, text, text, []) for formats, text in TEXT)]


@pytest.mark.parametrize(("formats", "text", "answer", "calls"), ALL, ids=[case[1][:60] for case in ALL])
def test_n6_calls_are_told_from_text(formats: tuple[CallFormat, ...], text: str, answer: str, calls: Calls) -> None:
    assert split([text], formats) == ("", answer, calls)
    assert split([text[i : i + 3] for i in range(0, len(text), 3)], formats) == ("", answer, calls)
    if len(text) < 1000:
        assert split(text, formats) == ("", answer, calls)


def test_a_malformed_call_hides_no_good_one_behind_it() -> None:
    bad = "<tool_call>{oops}</tool_call>"
    assert split([f"{bad}\n<tool_call>{PARIS}</tool_call>"], HERMES) == ("", bad, OPEN)
    nested = f"<tool_call>{{oops <tool_call>{PARIS}</tool_call>"
    assert split([nested], HERMES) == ("", "<tool_call>{oops", OPEN)
    cut = f'<tool_call>{{"name": "<tool_call>{PARIS}</tool_call>'
    assert split([cut], HERMES)[2] == OPEN


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "<think>",
                "</think>",
                "<tool_call>",
                "</tool_call>",
                PARIS,
                PYTHON,
                "{",
                '"',
                "'",
                " ",
                "a",
                "<to",
                "<response>",
            ]
        ),
        max_size=10,
    ),
    st.sampled_from([None, THINK, Tags("<think>", "</think>", {}, ("<response>", "</response>"))]),
    st.randoms(use_true_random=False),
)
def test_where_a_text_is_cut_changes_nothing(parts: list[str], tags: Tags | None, random: Any) -> None:
    text = "".join(parts)
    places = sorted(random.randrange(len(text) + 1) for _ in range(4))
    cuts = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    assert split(cuts, HERMES, tags=tags) == split([text], HERMES, tags=tags)


@pytest.mark.parametrize(("formats", "text", "answer", "calls"), WELL, ids=[case[1][:60] for case in WELL])
def test_no_piece_of_a_call_is_ever_given_out(
    formats: tuple[CallFormat, ...], text: str, answer: str, calls: Calls
) -> None:
    splitter = Splitter(None, formats)
    shown = ""
    for letter in text:
        shown += "".join(delta.text for delta in splitter.push(letter))
        assert answer.startswith(shown)


def test_what_cannot_be_a_call_is_not_held_back() -> None:
    splitter = Splitter(None, HERMES)
    assert splitter.push("use <tool_") == [Delta("use")]
    assert splitter.push("call> to ") == [Delta(" <tool_call>"), Delta(" to")]
    assert splitter.push("call") == [Delta(" call")]
    bare = Splitter(None, LLAMA)
    assert bare.push(' {"n') == []
    assert bare.push('o": 1}') == [Delta(' {"no": 1}')]
    later = Splitter(None, LLAMA)
    assert later.push("So: ") == [Delta("So:")]
    assert later.push(PARIS) == [Delta(f" {PARIS}")]


def test_a_body_is_not_read_again_for_each_tag_in_a_string() -> None:
    read: list[str] = []
    style = replace(HERMES[0], parse=lambda body: (read.append(body) or (), 0))
    body = '{"name": "' + "</tool_call>" * 50
    splitter = Splitter(None, [style])
    assert [splitter.push(piece) for piece in ("<tool_call>", *body)] == [[]] * (len(body) + 1)
    assert read == []
    assert splitter.finish() == [Delta("<tool_call>"), Delta(body)]
    assert read == [body]


def test_a_call_in_the_reasoning_is_a_thought() -> None:
    text = f"<think>I could <tool_call>{ROME}</tool_call></think>\n\nSo:\n<tool_call>\n{PARIS}\n</tool_call>"
    expected = (f"I could <tool_call>{ROME}</tool_call>", "So:", OPEN)
    assert split(text, HERMES, tags=THINK) == expected
    assert split(f"<think>\n</think>\n\n<tool_call>{PARIS}</tool_call>\n", HERMES, tags=THINK) == ("", "", OPEN)


@pytest.mark.parametrize(("template", "openings"), [
    ("a <tool_call></tool_call> b", ["<tool_call>"]),
    ("respond with <|tool_call|> and a list", ["<|tool_call|>"]),
    ("{{ '[TOOL_CALLS]' }}", ["[TOOL_CALLS]"]),
    ("Environment: ipython <|python_tag|>", ["<|python_tag|>", '{"name"', '{"type"']),
    ("Environment: ipython", ['{"name"', '{"type"']),
    ("<|im_start|>", []),
])  # fmt: skip
def test_a_template_says_which_formats_a_model_has(
    byte_level: tokenizers.Tokenizer, template: str, openings: list[str]
) -> None:
    tokenizer = Tokenizer(byte_level.to_str(), bos=1, eos=(2,), add_bos=False, special={})
    assert [style.opening for style in find_formats(template, tokenizer)] == openings


def test_a_vocabulary_says_it_too(byte_level: tokenizers.Tokenizer) -> None:
    source = tokenizers.Tokenizer.from_str(byte_level.to_str())
    source.add_special_tokens(["<|tool_call|>", "<|/tool_call|>"])
    source.add_tokens(["<tool_call>"])
    tokenizer = Tokenizer(source.to_str(), bos=1, eos=(2,), add_bos=False, special={})
    assert find_formats("", tokenizer) == HERMES + PHI  # not Granite's, which has the same opening and no closing


def test_ids_are_fresh_and_fit_the_strictest_template() -> None:
    splitter = Splitter(None, HERMES)
    found = splitter.push(f"<tool_call>[{PARIS}, {PARIS}]</tool_call>")
    ids = [delta.call.id for delta in found if delta.call]
    assert len(set(ids)) == 2
    assert all(re.fullmatch("[a-zA-Z0-9]{9}", identity) for identity in ids)
    own = Splitter(None, MISTRAL)
    own.push('[TOOL_CALLS] [{"name": "f", "arguments": {}, "id": "abcDEF123"}]')
    assert [delta.call.id for delta in own.finish() if delta.call] == ["abcDEF123"]


def test_tags_that_are_control_tokens_are_seen(byte_level: tokenizers.Tokenizer) -> None:
    source = tokenizers.Tokenizer.from_str(byte_level.to_str())
    source.add_special_tokens(["[TOOL_CALLS]", "[ARGS]"])
    tokenizer = Tokenizer(source.to_str(), bos=1, eos=(2,), add_bos=False, special={})
    spelled = control_tags(MISTRAL, tokenizer)
    assert sorted(spelled.values()) == ["[ARGS]", "[TOOL_CALLS]"]
    opening, inner = (source.token_to_id(tag) for tag in ("[TOOL_CALLS]", "[ARGS]"))
    ids = [opening, *tokenizer.encode("weather"), inner, *tokenizer.encode('{"city": "Paris"}')]
    assert "ARGS" not in tokenizer.decode(ids)
    text = TextStream(tokenizer, (), spelled=spelled)
    assert split([*map(text.push, ids), text.finish()], MISTRAL) == ("", "", OPEN)


TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
QWEN = (
    "{% if tools %}{{ tools | tojson }}<tool_call></tool_call>{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{% for call in m.tool_calls %}<tool_call>{{ call.function.arguments | tojson }}</tool_call>{% endfor %}"
    "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% if xml_tools %}!{% endif %}{% endif %}"
)


@pytest.fixture
def caller(opened: OpenScripted) -> OpenScripted:
    """`opened` with a template that takes tools."""
    return partial(opened, template=QWEN)


def streamed(pipeline: Pipeline, **options: Any) -> tuple[str, str, Calls, Result]:
    stream = pipeline.stream("hi", **options)
    deltas = list(stream.deltas())
    assert stream.result is not None
    return *join(deltas), stream.result


def test_v6_calls_are_the_same_in_stream_and_result(caller: OpenScripted) -> None:
    pipeline = caller(f"Sure.\n<tool_call>\n{PARIS}\n</tool_call>\n<tool_call>\n{ROME}\n</tool_call>")
    reasoning, answer, calls, result = streamed(pipeline, tools=TOOLS)
    assert (reasoning, answer, calls) == ("", "Sure.", BOTH)
    assert (result.text, result.finish_reason) == ("Sure.", "tool_calls")
    again = pipeline.complete("hi", tools=TOOLS)
    for found in (result, again):
        assert [(call.name, call.arguments) for call in found.tool_calls] == [
            ("weather", '{"city": "Paris"}'),
            ("weather", '{"city": "Rome"}'),
        ]
    pieces = list(pipeline.stream("hi", tools=TOOLS))
    assert ("".join(pieces), all(pieces)) == ("Sure.", True)


def test_calls_of_tools_that_nobody_offered_are_text(caller: OpenScripted) -> None:
    text = f"Qwen writes <tool_call>{PARIS}</tool_call>"
    pipeline = caller(text)
    result = pipeline.complete("hi")
    assert (result.text, result.tool_calls, result.finish_reason) == (text, (), "stop")
    by_variable = GenerateOptions(chat_template_kwargs={"xml_tools": TOOLS})
    assert len(pipeline.complete("hi", by_variable).tool_calls) == 1
    assert pipeline.complete("hi", GenerateOptions(chat_template_kwargs={"xml_tools": []})).text == text
    by_message = [{"role": "system", "content": "", "tools": "[]"}, {"role": "user", "content": "hi"}]
    assert len(pipeline.complete(by_message).tool_calls) == 1


def test_a_cut_call_is_text_and_the_reason_stays(caller: OpenScripted) -> None:
    pipeline = caller(f"<tool_call>{PARIS}</tool_call>")
    cut = pipeline.complete("hi", GenerateOptions(max_tokens=20), tools=TOOLS)
    assert (cut.text, cut.tool_calls, cut.finish_reason) == (f"<tool_call>{PARIS}"[:20], (), "length")
    whole = pipeline.complete("hi", GenerateOptions(max_tokens=len(PARIS) + 23), tools=TOOLS)
    assert (whole.text, len(whole.tool_calls), whole.finish_reason) == ("", 1, "length")


@pytest.mark.parametrize(("stop", "text", "calls"), [
    ("</tool_call>", "", 1),
    ("/tool_call", "", 1),  # the closing tag is cut off, the call is whole
    ("ll>", "", 0),  # the opening tag is cut off
    ("tool_c", "", 0),
    ("}</tool_call>", f"<tool_call>{PARIS[:-1]}", 0),
])  # fmt: skip
def test_n20_a_stop_string_across_the_tag_of_a_call(caller: OpenScripted, stop: str, text: str, calls: int) -> None:
    pipeline = caller(f"<tool_call>{PARIS}</tool_call>")
    stopped = pipeline.complete("hi", GenerateOptions(stop=(stop,)), tools=TOOLS)
    assert (stopped.text, len(stopped.tool_calls), stopped.finish_reason) == (text, calls, "stop")


def test_a_control_token_opens_a_call_and_is_hidden_otherwise(caller: OpenScripted) -> None:
    tag = 256 + SPECIAL.index("<|system|>")
    answer = [*b"ok ", tag, *b' [{"name": "weather", "arguments": {"city": "Paris"}}]']
    template = QWEN.replace("<tool_call></tool_call>", "[TOOL_CALLS]")
    pipeline = caller(answer, template=template, rename={"<|system|>": "[TOOL_CALLS]"})
    _, text, calls, _ = streamed(pipeline, tools=TOOLS)
    assert (text, calls) == ("ok", OPEN)
    assert pipeline.complete("hi").text == f"ok  [{PARIS}]"


def test_an_answer_with_calls_goes_back_into_the_conversation(caller: OpenScripted) -> None:
    pipeline = caller(f"Sure.\n<tool_call>\n{PARIS}\n</tool_call>")
    result = pipeline.complete("hi", tools=TOOLS)
    message = result.to_message()
    (call,) = result.tool_calls
    assert message == {
        "role": "assistant",
        "content": "Sure.",
        "tool_calls": [
            {"id": call.id, "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
        ],
    }
    asked = [{"role": "user", "content": "hi"}, message, {"role": "tool", "content": "mild", "tool_call_id": call.id}]
    text = pipeline.tokenizer.decode(pipeline.encode(asked, tools=TOOLS))
    assert text.endswith('hiSure.<tool_call>{"city": "Paris"}</tool_call><|tool|>mild')
