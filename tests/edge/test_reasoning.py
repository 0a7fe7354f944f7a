"""Reasoning apart from the answer (T7): the splitter, whom it is for, and how it shows in streams and prompts."""

from __future__ import annotations

from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.commands.chat import Chat, Entry
from edge.errors import OptionError, UnsupportedError
from edge.options import GenerateOptions
from edge.reasoning import Tags, find_tags, is_opened
from edge.sections import Delta, Splitter
from edge.stream import TextStream
from edge.tokenizer import Tokenizer
from tests.edge.scripted import OpenScripted

THINK = Tags("<think>", "</think>", {})
# As DeepSeek-R1's: older answers lose their reasoning, and the prompt ends inside the next one.
R1 = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content.split('</think>')[-1] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
)
# As Qwen3's: the model opens its reasoning itself; reasoning is kept in the prompt for the latest turn only.
QWEN = (
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.reasoning_content and loop.last %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}<|end|>{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def split(pieces: list[str], *, opened: bool) -> tuple[str, str]:
    """(reasoning, answer) of pieces pushed one by one."""
    splitter = Splitter(THINK, opened=opened)
    found = [delta for piece in pieces for delta in splitter.push(piece)] + splitter.finish()
    assert all(delta.text for delta in found)
    order = [delta.reasoning for delta in found]
    assert order == sorted(order, reverse=True)
    return "".join(d.text for d in found if d.reasoning), "".join(d.text for d in found if not d.reasoning)


CASES = [
    (True, "reason</think>\n\nanswer", "reason", "answer"),
    (True, "\nreason one\n\n two \n</think>answer\n", "reason one\n\n two", "answer\n"),
    (True, "cut off in the mid", "cut off in the mid", ""),
    (True, "cut off at a tag </thi", "cut off at a tag </thi", ""),
    (True, "a < b </ c </think> x", "a < b </ c", "x"),
    (True, "</think>\n\nat once", "", "at once"),
    (True, "<think>\nsaid again</think>a", "<think>\nsaid again", "a"),
    (False, "<think>\nreason\n</think>\n\nanswer", "reason", "answer"),
    (False, "\n<think></think>answer", "", "answer"),
    (False, "  plain answer ", "", "  plain answer "),
    (False, "say <think>x</think>", "", "say <think>x</think>"),
    (False, "<thinker> and </think>", "", "<thinker> and </think>"),
    (False, "<thi", "", "<thi"),
    (False, "<think>a</think>b<think>c</think>", "a", "b<think>c</think>"),
    (False, " \n", "", " \n"),
]  # fmt: skip


@pytest.mark.parametrize(("opened", "text", "reasoning", "answer"), CASES)
def test_t7_the_splitter_letter_by_letter_and_at_once(opened: bool, text: str, reasoning: str, answer: str) -> None:
    assert split(list(text), opened=opened) == (reasoning, answer)
    assert split([text], opened=opened) == (reasoning, answer)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<", "/", "think", ">", " ", "\n", "a"]), max_size=12),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_t7_where_a_text_is_cut_changes_nothing(parts: list[str], opened: bool, random: Any) -> None:
    text = "".join(parts)
    places = sorted(random.randrange(len(text) + 1) for _ in range(4))
    cuts = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    assert split(cuts, opened=opened) == split([text], opened=opened)


@pytest.mark.parametrize(("opened", "answer", "stop", "reasoning", "text"), [
    (True, "reason</think>answer", "k>\n", "reason", "answer"),
    (True, "reason</think>\nanswer", "k>\n", "reason", ""),
    (True, "reason</think>\nanswer", "nk>", "reason", ""),
    (True, "reason</think>\nanswer", "nk", "reason", ""),
    (True, "reason </think>\nanswer", ">", "reason", ""),
    (True, "a </th b</think>", "th b", "a </", ""),  # no tag
    (True, "a < b", " b", "a <", ""),
    (False, "<think>\nreason</think>", "ink>\n", "", ""),
    (False, "<think>\nreason</think>x", "x", "reason", ""),
    (False, "<th and more", " and", "", "<th"),
])  # fmt: skip
def test_n20_a_stop_string_across_a_tag_leaves_nothing_of_it(
    opened: bool, answer: str, stop: str, reasoning: str, text: str
) -> None:
    shown, cut, _ = answer.partition(stop)
    splitter = Splitter(THINK, opened=opened)
    found = [delta for letter in shown for delta in splitter.push(letter)] + splitter.finish(stop if cut else None)
    assert "".join(d.text for d in found if d.reasoning) == reasoning
    assert "".join(d.text for d in found if not d.reasoning) == text


def test_n20_a_stop_string_across_a_tag_in_an_answer(opened: OpenScripted) -> None:
    result = opened("reason</think>answer", template=R1).complete("why?", GenerateOptions(stop=("k>an",)))
    assert (result.reasoning, result.text, result.stop) == ("reason", "", "k>an")


def test_what_is_certain_is_not_held_back() -> None:
    splitter = Splitter(THINK, opened=True)
    assert splitter.push("so ") == [Delta("so", reasoning=True)]
    assert splitter.push("be it") == [Delta(" be it", reasoning=True)]
    assert splitter.push("</think>") == []
    assert splitter.push("\nYes") == [Delta("Yes")]
    assert splitter.push(" ") == [Delta(" ")]


@pytest.mark.parametrize(("template", "answer"), [
    (R1, "reason</think>\n\nanswer"),
    (QWEN, "<think>\nreason\n</think>\n\nanswer"),
    ("<|{{ messages[0].role }}|>{{ messages[0].content }}<|end|><think>\n", "reason</think>\n\nanswer"),
])  # fmt: skip
def test_t7_reasoning_is_apart_in_stream_and_result(opened: OpenScripted, template: str, answer: str) -> None:
    pipeline = opened(answer, template=template)
    result = pipeline.complete("why?")
    assert (result.reasoning, result.text, result.finish_reason) == ("reason", "answer", "stop")
    assert "".join(pipeline.stream("why?")) == "answer"
    stream = pipeline.stream("why?")
    deltas = list(stream.deltas())
    assert "".join(d.text for d in deltas if d.reasoning) == "reason"
    assert "".join(d.text for d in deltas if not d.reasoning) == "answer"
    assert stream.result is not None
    assert (stream.result.reasoning, stream.result.text) == ("reason", "answer")


def test_t7_a_template_that_opens_and_closes_leaves_the_answer_alone(opened: OpenScripted) -> None:
    result = opened("answer", template=R1.replace("<think>\n", "<think>\n\n</think>\n\n")).complete("why?")
    assert (result.reasoning, result.text) == ("", "answer")


def test_t7_a_user_who_writes_the_tag_opens_nothing(opened: OpenScripted) -> None:
    result = opened("answer", template=QWEN).complete("<think>")
    assert (result.reasoning, result.text) == ("", "answer")


def test_a_model_without_tags_and_a_raw_text_are_not_split(opened: OpenScripted) -> None:
    plain = "<|{{ messages[0].role }}|>{{ messages[0].content }}<|end|><|assistant|>"
    assert opened("<think>a</think>b", template=plain).complete("hi").text == "<think>a</think>b"
    raw = opened("a</think>b", template=R1).complete("<think>", raw=True)
    assert (raw.reasoning, raw.text) == ("", "a</think>b")


def test_cut_reasoning_is_no_answer_and_stop_strings_end_it(opened: OpenScripted) -> None:
    pipeline = opened("reason</think>answer", template=R1)
    cut = pipeline.complete("why?", GenerateOptions(max_tokens=4))
    assert (cut.reasoning, cut.text, cut.finish_reason) == ("reas", "", "length")
    stopped = pipeline.complete("why?", GenerateOptions(stop=("son",)))
    assert (stopped.reasoning, stopped.text, stopped.stop) == ("rea", "", "son")


def test_t7_older_reasoning_is_handled_as_the_template_says(opened: OpenScripted) -> None:
    turn = {"role": "assistant", "content": "4", "reasoning_content": "2+2"}
    pipeline = opened("x", template=QWEN)
    asked = [{"role": "user", "content": "2+2?"}, turn]
    assert "2+2\n</think>" in pipeline.tokenizer.decode(pipeline.encode(asked))
    later = pipeline.encode([*asked, {"role": "user", "content": "sure?"}])
    assert pipeline.tokenizer.decode(later) == "2+2?4sure?"
    whole = [{"role": "assistant", "content": "2+2</think>4"}, {"role": "user", "content": "sure?"}]
    assert pipeline.tokenizer.decode(opened("x", template=R1).encode(whole)) == "4sure?<think>\n"


def test_t7_the_chat_keeps_reasoning_apart_from_the_turn(
    opened: OpenScripted, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline = opened("<think>\nhm\n</think>\n\nyes", "<think>\nhm again\n</think>\n\nno", template=QWEN)
    lines = iter(["really?", "and now?"])

    def read() -> str:
        for line in lines:
            return line
        raise EOFError

    chat = Chat(pipeline, GenerateOptions(), entry=Entry(read))
    assert chat.loop() == 0
    out, err = capsys.readouterr()
    assert out == "yes\nno\n"
    assert "hm\n" in err
    assert "hm again\n" in err
    assert [message.get("reasoning_content") for message in chat.conversation.messages] == [
        None,
        "hm",
        None,
        "hm again",
    ]
    assert [message["content"] for message in chat.conversation.messages] == ["really?", "yes", "and now?", "no"]


def test_tags_that_are_control_tokens(byte_level: tokenizers.Tokenizer) -> None:
    """As Magistral has them: text would show neither tag."""
    source = tokenizers.Tokenizer.from_str(byte_level.to_str())
    source.add_special_tokens(["[THINK]", "[/THINK]"])
    tokenizer = Tokenizer(source.to_str(), bos=1, eos=(2,), add_bos=False, special={})
    tags = find_tags("", tokenizer)
    assert tags is not None
    assert (tags.opening, sorted(tags.spelled.values())) == ("[THINK]", ["[/THINK]", "[THINK]"])
    opening, closing = (source.token_to_id(tag) for tag in ("[THINK]", "[/THINK]"))
    assert is_opened([3, *tokenizer.encode("hi"), opening, *tokenizer.encode("\n")], tags, tokenizer)
    assert not is_opened([3, opening, closing], tags, tokenizer)
    assert not is_opened([opening, 3], tags, tokenizer)  # another turn has begun since
    text = TextStream(tokenizer, ("stop",), spelled=tags.spelled)
    ids = [opening, *tokenizer.encode("a é"), closing, *tokenizer.encode("b")]
    assert "".join(map(text.push, ids)) + text.finish() == "[THINK]a é[/THINK]b"
    assert find_tags("", Tokenizer(byte_level.to_str(), bos=1, eos=(2,), add_bos=False, special={})) is None


def test_tools_reach_a_template_that_takes_them_and_no_other(opened: OpenScripted) -> None:
    tools = [{"type": "function", "function": {"name": "clock"}}]
    pipeline = opened("x", template=QWEN)
    assert '"clock"' in pipeline.tokenizer.decode(pipeline.encode("hi", tools=tools))
    assert pipeline.complete("hi", tools=tools).prompt_tokens > pipeline.complete("hi").prompt_tokens
    with pytest.raises(UnsupportedError, match="takes no tools"):
        opened("x", template=R1).complete("hi", tools=tools)
    with pytest.raises(OptionError, match="raw prompt"):
        pipeline.complete("hi", raw=True, tools=tools)
