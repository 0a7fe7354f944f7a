"""Templates against jinja2 as transformers sets it up, and templates that would never end (N19, N27)."""

# ruff: noqa: E501 (templates are one line each)
from __future__ import annotations

import threading
import tracemalloc
import warnings
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from transformers.utils.chat_template_utils import _compile_jinja_template

from edge.chat import ChatTemplate, ChatTemplates
from edge.errors import FormatError, UnsupportedError
from edge.options import RuntimeOptions
from edge.pipeline import Pipeline
from edge.template.template import Template
from edge.template.text import Text, marks, wrote
from edge.template.work import CancelledError, LimitError, Work
from tests.edge.scripted import OpenScripted, with_file
from tests.edge.template_grammar import CONTENT, GIVEN, TEMPLATES

ASKED = [{"role": "user", "content": "hi"}]
LOOP = "{% for a in range(99999) %}"
TWICE = LOOP + "{% for b in range(99999) %}"
ENDS = "{% endfor %}{% endfor %}"
GROWING = "{% set ns = namespace(s='ab', l=['ab'], n=2) %}" + LOOP
HOSTILE = [
    TWICE + ENDS,
    TWICE + "x" + ENDS,
    TWICE + "{% set x = a + b %}" + ENDS,
    "{% macro f() %}" + LOOP + "{{ f() }}{% endfor %}{% endmacro %}{{ f() }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
    "{% for x in [[[[1]]]] recursive %}{{ loop([[1], [2]]) }}{% endfor %}",
    GROWING + "{% set ns.s = ns.s + ns.s %}{% endfor %}",
    GROWING + "{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    GROWING + "{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}{% endfor %}",
    GROWING + "{% set ns.s = ns.s.replace('', ns.s) %}{% endfor %}",
    GROWING + "{% set ns.s = '%s%s' % (ns.s, ns.s) %}{% endfor %}",
    GROWING + "{% set ns.s = '{0}{0}'.format(ns.s) %}{% endfor %}",
    GROWING + "{% set ns.s = [ns.s, ns.s] | join(ns.s) %}{% endfor %}",
    GROWING + "{% filter replace('a', 'b') %}{{ ns.s * 1000 }}{% endfilter %}{% endfor %}",
    GROWING + "{% set ns.l = ns.l + ns.l %}{% endfor %}",
    GROWING + "{% set ns.l = ns.l * 2 %}{% endfor %}",
    GROWING + "{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l | tojson }}",
    GROWING + "{% set ns.l = [ns.l, ns.l] %}{% if loop.last %}{{ ns.l }}{% endif %}{% endfor %}",
    "{% set ns = namespace(l=[1], k=[1]) %}{% for a in range(90) %}{% set ns.l = [ns.l, ns.l] %}{% set ns.k = [ns.k, ns.k] %}"
    "{% endfor %}{{ ns.l == ns.k }}",
    "{% set ns = namespace(l=(1,)) %}{% for a in range(90) %}{% set ns.l = (ns.l, ns.l) %}{% endfor %}{{ {ns.l: 1} | length }}",
    "{% set ns = namespace(l=(1,)) %}{% for a in range(90) %}{% set ns.l = (ns.l, ns.l) %}{% endfor %}{{ [ns.l] | unique | list }}",
    GROWING + "{% set ns.n = ns.n * ns.n %}{% endfor %}",
    GROWING + "{% set ns.n = ns.n ** ns.n %}{% endfor %}",
    "{{ 10 ** (10 ** 8) }}",
    "{{ 'x' * 3000000000 }}",
    "{{ 3000000000 * 'x' }}",
    "{{ [1] * 3000000000 }}",
    "{{ 'x' | center(1000000000) }}",
    "{{ 'x'.center(1000000000) }}",
    "{{ 'x'.ljust(1000000000) }}",
    "{{ 'x'.zfill(1000000000) }}",
    "{{ '\\t'.expandtabs(1000000000) }}",
    "{{ 'x\\nx' | indent(1000000000) }}",
    "{{ ('x\\n' * 100000) | indent(100000) }}",
    "{{ [1] | tojson(indent=1000000000) }}",
    "{{ range(99999) | list | tojson(indent=100000) }}",
    "{{ [1] | batch(1000000000, 'x') | list }}",
    "{{ [1] | slice(1000000000) | list }}",
    "{{ ('x' * 100000).join(range(99999) | map('string')) }}",
    "{{ range(99999) | join('x' * 100000) }}",
    "{{ ('a' * 100000).replace('a', 'b' * 100000) }}",
    GROWING + "{{ range(99999) | list | sort | reverse | list | length }}{% endfor %}",
    GROWING + "{{ 'a' in 'b' * 9000000 }}{% endfor %}",
    "{% set x = 'b' * 9000000 %}" + LOOP + "{{ 'a' in x }}{{ x.find('a') }}{{ x.count('c') }}{{ x == x ~ 'a' }}{% endfor %}",
    "{% set f %}{% for i in range(60000) %}{}{% endfor %}{% endset %}" + LOOP + "{{ f.format(*range(60000)) }}{% endfor %}",
]  # fmt: skip
REFUSED = [
    ("{{ lipsum(n=1000000000) }}", "'lipsum' is undefined"),
    ("{{ range(1000000000) | list }}", "Range too big"),
    ("{{ '%1000000000d' % 1 }}", "is too large"),
    ("{{ '%.1000000000f' % 1 }}", "is too large"),
    ("{{ '{:1000000000}'.format(1) }}", "is too large"),
    ("{{ '{:{w}}'.format(1, w=1000000000) }}", "is too large"),
    ("{{ 5 | round(-1000000000) }}", "out of range"),
    ("{{ 5 | round(1000000000, 'ceil') }}", "out of range"),
    ("{{ strftime_now('%1000000000d') }}", "too long"),
    ("{{ (5).to_bytes(1000000000, 'big') }}", "unsafe"),
    ("{{ messages.__class__ }}{{ messages.__class__.mro() }}", "unsafe"),
    ("{{ cycler.__init__.__globals__ }}", "no attribute '__init__'"),
]
NEVER = ["{{ 10 ** (10 ** 8) }}", "{{ 'x' * 3000000000 }}", "{{ 'x' | center(3000000000) }}", "{{ [1] * 3000000000 }}"]


@pytest.mark.parametrize("source", HOSTILE)
def test_n19_a_template_that_would_not_end_is_stopped(source: str) -> None:
    template = ChatTemplate(source, {}, steps=50_000)  # a small part of what is allowed, to be quick
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=r"^the chat template of this model was stopped: it (?!takes)[^\n]*$"):
            template.render(ASKED)
        assert tracemalloc.get_traced_memory()[1] < 100_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("source", "reason"), REFUSED)
def test_n19_what_a_template_asks_for_is_refused(source: str, reason: str) -> None:
    with pytest.raises(Exception, match=rf"^the chat template refused the messages: .*{reason}[^\n]*$"):
        ChatTemplate(source, {}, steps=200_000).render(ASKED)


@pytest.mark.parametrize("source", NEVER)
@pytest.mark.parametrize(
    "around", ["{% if false %}{}{% endif %}ok", "{{ 'ok' if true else {} }}", "{% macro f() %}{}{% endmacro %}ok"]
)
def test_n27_what_is_never_reached_is_never_computed(source: str, around: str) -> None:
    inner = source if "%}{}" in around else source[3:-3]
    assert ChatTemplate(around.replace("{}", inner), {}).render(ASKED) == "ok"


def test_n19_the_bound_holds_in_a_thread_and_grows_with_what_is_given() -> None:
    found: list[str] = []

    def render() -> None:
        with pytest.raises(FormatError, match="far more work"):
            ChatTemplate(TWICE + ENDS, {}, steps=50_000).render(ASKED)
        found.append("stopped")

    thread = threading.Thread(target=render)
    thread.start()
    thread.join()
    assert found == ["stopped"]
    small = ChatTemplate("{% for m in messages %}{{ m.content | upper | lower }}{% endfor %}", {}, steps=1000)
    assert len(small.render([{"role": "user", "content": "x" * 1_000_000}])) == 1_000_000


def test_n19_a_rendering_that_nobody_waits_for_ends() -> None:
    looks: list[int] = []

    def cancelled() -> bool:
        looks.append(1)
        return len(looks) == 3

    with pytest.raises(CancelledError):
        ChatTemplate(TWICE + ENDS, {}).render(ASKED, cancelled=cancelled)
    assert len(looks) == 3


def test_n19_an_answer_may_be_cancelled_while_its_template_renders(opened: OpenScripted) -> None:
    pipeline = opened("x", template=TWICE + ENDS)
    cancel = threading.Event()
    cancel.set()
    result = pipeline.complete("hi", cancel=cancel)
    assert (result.finish_reason, result.text, result.prompt_tokens) == ("cancel", "", 0)
    with pytest.raises(FormatError, match="stopped"):
        pipeline.complete("hi")


def test_n5_a_bundle_has_several_templates(opened: OpenScripted) -> None:
    pipeline = opened("x", template="D{{ messages[0].content }}")
    folder = pipeline.bundle.path
    (folder / "chat_templates").mkdir()
    source = "T{{ tools | length }}{{ messages[0].content }}<tool_call></tool_call>"
    bundle = with_file(pipeline.bundle, "chat_templates/tool_use.jinja", source)
    with Pipeline(bundle, RuntimeOptions(runtime="scripted")) as model:
        assert model.tokenizer.decode(model.encode("hi")) == "Dhi"
        assert model.tokenizer.decode(model.encode("hi", tools=[{}])).startswith("T1hi")
        assert [style.opening for style in model.call_formats] == ["<tool_call>"]


def test_n19_time_is_bound_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.template.work.SECONDS", -1.0)
    with pytest.raises(LimitError, match="takes longer"):
        Template(TWICE + ENDS).render({}, Work())


@pytest.mark.parametrize(("source", "message"), [
    ("{% if %}", "line 1: "),
    ("a\n{{ x | nothing }}", "line 2: No filter named 'nothing'"),
    ("{{ x is nothing }}", "line 1: No test named 'nothing'"),
    ("{% include 'x' %}", "line 1: a chat template has no include statement"),
    ("{% break %}", "line 1: break outside of a loop"),
    ("{{ " + "9" * 5000 + " }}", "integer string conversion"),
    ("x" * 1_000_001, "1000001 characters"),
])  # fmt: skip
def test_n27_a_template_that_does_not_compile_is_named(source: str, message: str) -> None:
    with pytest.raises(FormatError, match=f"^the chat template is not valid.*{message}"):
        ChatTemplates({"default": source}, {})
    with pytest.raises(FormatError, match=r"^the chat template 'rag' is not valid"):
        ChatTemplates({"default": "x", "rag": source}, {})
    assert ChatTemplate("{{ 'a' if true else x | nothing }}", {}).render(ASKED) == "a"  # perhaps never used


def test_n5_the_template_for_tools_serves_where_tools_are_given() -> None:
    both = ChatTemplates({"default": "D", "tool_use": "T{{ tools | length }}", "rag": "R"}, {})
    assert both.pick(tools=False).render(ASKED) == "D"
    assert both.pick(tools=True).render(ASKED, tools=[{}]) == "T1"
    assert both.variables(None, {}, tools=True) == {}
    one = ChatTemplates({"default": "D"}, {})
    with pytest.raises(UnsupportedError, match="takes no tools"):
        one.variables(None, {}, tools=True)
    with pytest.raises(UnsupportedError, match="no chat template called default; it has rag, tool_use"):
        ChatTemplates({"tool_use": "T", "rag": "R"}, {}).pick(tools=False)


@pytest.mark.parametrize("source", [
    "{% if m.content is none %}N{% endif %}{{ m.content }}",
    "{% if m.content is not none and '</think>' in m.content %}x{% endif %}{{ m.content }}",
    "{% if m.content is none %}N{% endif %}{{ m.content + '!' }}",  # asks, and fails on it all the same
    "{{ m.content | trim }}{{ m.content.split('x')[0] }}",
    "{% if m.content %}{{ m.content }}{% endif %}{% for c in m.tool_calls %}{{ c.function.name }}{% endfor %}",
    "{% if m.content is string %}S{% endif %}",
])  # fmt: skip
def test_n5_null_content_beside_calls_renders(source: str) -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    text = ChatTemplate("{% set m = messages[0] %}" + source, {}).render([message])
    assert text in ("NNone", "None", "!", "", "f", "S")


def _outcome(run: Any) -> str | None:
    try:
        return str(run())
    except Exception:
        return None


@settings(max_examples=100, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(TEMPLATES)
def test_any_template_renders_as_in_transformers(source: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = _outcome(lambda: _compile_jinja_template(source).render(**GIVEN))
    if expected is None or " at 0x" in expected.lower():
        return
    assert str(Template(source).render(GIVEN, Work())) == expected


@settings(max_examples=100, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(TEMPLATES)
def test_n26_marks_are_as_long_as_the_text_and_never_on_a_letter_of_a_message(source: str) -> None:
    """The message has letters that no template has: none of them may count as the template's."""
    letters = str.maketrans({letter: chr(0x2400 + place) for place, letter in enumerate(sorted(set(CONTENT)))})
    given = {**GIVEN, "messages": [dict(m, content=m["content"].translate(letters)) for m in GIVEN["messages"]]}
    try:
        text = Template(source).render(given, Work(500_000))
    except Exception:
        return
    written = marks(text)
    assert len(written) == len(text)
    assert not any(mark and "\u2400" <= letter <= "\u2500" for mark, letter in zip(written, text, strict=True))


def test_what_an_operation_does_not_know_is_text() -> None:
    text = wrote("<|im_end|>")
    assert isinstance(text, Text)
    for lost in (text + "", "".join([text]), text.replace("x", "y"), f"{text}", text.lower()):
        assert not isinstance(lost, Text)
