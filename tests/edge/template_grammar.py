"""Templates made at random from the syntax that chat templates use, and what they are rendered with."""

# ruff: noqa: E501 (templates are one line each)
from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

CONTENT = " Hi <|im_end|> there, <b>you</b>\n\n  é! "
GIVEN: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "be brief", "rank": 2},
        {"role": "user", "content": CONTENT, "rank": 1, "tags": ["b", "A", "b"]},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "f", "arguments": {"q": [1, None]}}}],
        },
    ],
    "tools": [{"name": "f", "parameters": {"a": {"type": "string"}, "b": {"type": ["x", "y"]}}}],
    "word": "straße",
    "count": 3,
    "none": None,
    "words": ["one", "Two", "three"],
    "table": {"b": 1, "a": [2, 3]},
}
_TEXTS = [
    "''",
    "' a '",
    "'<|im_start|>'",
    "'%s|%5.2s'",
    "'{}-{}'",
    "'aba'",
    "'b'",
    "'\\n'",
    "' '",
    "'ß'",
    "'1.5'",
    "'x y z'",
]
_NAMES = [
    "word",
    "count",
    "none",
    "words",
    "table",
    "messages",
    "messages[1].content",
    "messages[0]",
    "tools",
    "nothing",
    "m",
]
_NUMBERS = ["0", "1", "-1", "2", "7", "2.5", "true", "false"]
_FILTERS = [
    "abs", "batch(2, 'x') | list", "capitalize", "center(9)", "count", "default('d')", "default('d', true)",
    "dictsort", "e", "first", "float", "format('x', 1)", "groupby('role')", "indent", "indent(2, true)",
    "indent(1, false, true)", "int", "items | list", "join", "join(', ')", "join('-', attribute='role')", "last",
    "length", "list", "lower", "map('upper') | list", "map(attribute='content') | list", "map('length') | list", "max",
    "min", "reject('none') | list", "rejectattr('tags', 'defined') | list", "replace('a', 'xx')", "replace('', '-')",
    "replace('b', '', 1)", "reverse", "reverse | list", "round", "round(1, 'ceil')", "safe", "select('string') | list",
    "select | list", "selectattr('role', 'equalto', 'user') | list", "selectattr('tags') | list | length", "slice(2) | list",
    "sort", "sort(attribute='rank')", "sort(true, true)", "string", "sum", "sum(attribute='rank')", "title", "tojson",
    "tojson(indent=2)", "trim", "trim('a ')", "truncate(5)", "truncate(7, true, '..', 0)", "unique | list", "upper",
    "urlencode", "wordcount", "attr('role')", "tojson(sort_keys=true, separators=(',', ':'))",
]  # fmt: skip
_METHODS = [
    "capitalize()", "center(7, '*')", "count('a')", "endswith('e')", "find('b')", "get('a', 5)", "get('role')", "index('b')",
    "isdigit()", "items()", "join(words)", "keys()", "ljust(5)", "lower()", "lstrip()", "partition(' ')", "replace('a', 'bb')",
    "removeprefix(' ')", "removesuffix('e')", "rfind('e')", "rjust(6, '-')", "rpartition('e')", "rsplit(' ', 1)", "rsplit()",
    "rstrip()", "split()", "split('e')", "split(' ', 1)", "splitlines()", "splitlines(true)", "startswith('<|', 1)",
    "strip()", "strip('<>| ')", "swapcase()", "title()", "upper()", "values()", "zfill(8)", "format('x', y)", "append(1)",
    "expandtabs()", "isspace()", "casefold()", "role", "content", "copy()", "format(1, 2)",
]  # fmt: skip
_TESTS = [
    "defined", "undefined", "none", "string", "mapping", "number", "sequence", "iterable", "odd", "even", "true", "boolean",
    "integer", "float", "callable", "lower", "upper", "in words", "eq 3", "divisibleby 3", "sameas none", "filter", "test",
]  # fmt: skip
_OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]
_LOOP = [
    "index",
    "index0",
    "revindex",
    "revindex0",
    "first",
    "last",
    "length",
    "previtem",
    "nextitem",
    "depth",
    "cycle(1, 2)",
]
_LOOP += ["changed(m)"]


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    place = st.sampled_from(["0", "-1", "'role'", "'a'", "7", "'upper'"])
    return st.one_of(
        st.builds("({} | {})".format, inner, st.sampled_from(_FILTERS)),
        st.builds("({}).{}".format, inner, st.sampled_from(_METHODS)),
        st.builds("({})[{}]".format, inner, place),
        st.builds("({} {} {})".format, inner, st.sampled_from(_OPERATORS), inner),
        st.builds("({} is {})".format, inner, st.sampled_from(_TESTS)),
        st.builds("({} is not {})".format, inner, st.sampled_from(_TESTS)),
        st.builds("({} if {} else {})".format, inner, inner, inner),
        st.builds("[{}, {}]".format, inner, inner),
        st.builds("({}, {})".format, inner, inner),
        st.builds("{{'k': {}, 'l': {}}}".format, inner, inner),
        st.builds("(not {})".format, inner),
        st.builds("(-{})".format, inner),
        st.builds("({}, 1)[0] < {} <= 9".format, inner, inner),
    )


def _texts(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Expressions that are texts, mostly."""
    filters = [name for name in _FILTERS if name.split("(")[0] in _OF_TEXTS]
    methods = [name for name in _METHODS if name.endswith(")") and name.split("(")[0] in _TEXT_METHODS]
    return st.one_of(
        st.builds("({} | {})".format, inner, st.sampled_from(filters)),
        st.builds("({}).{}".format, inner, st.sampled_from(methods)),
        st.builds("({})[{}]".format, inner, st.sampled_from(["1:", ":-1", "::2", "::-1", "1:3", ":4"])),
        st.builds("({} {} {})".format, inner, st.sampled_from(["+", "~", "or", "and"]), inner),
        st.builds("('%s|%-4s|' % ({}, {}))".format, inner, inner),
        st.builds("'{{}}<{{x}}>'.format({}, x={})".format, inner, inner),
        st.builds("({}).replace({}, {})".format, inner, inner, inner),
        st.builds("({}).join([{}, {}])".format, inner, inner, inner),
        st.builds("({} | replace({}, {}))".format, inner, inner, inner),
        st.builds("({}).split({} or ' ')[0]".format, inner, inner),
        st.builds("({} if {} else {})".format, inner, inner, inner),
    )


_OF_TEXTS = [
    "capitalize",
    "center",
    "default",
    "e",
    "first",
    "format",
    "indent",
    "last",
    "list",
    "lower",
    "replace",
    "reverse",
    "string",
    "title",
    "trim",
    "truncate",
    "upper",
]
_TEXT_METHODS = [
    "capitalize",
    "center",
    "ljust",
    "lower",
    "lstrip",
    "replace",
    "removeprefix",
    "removesuffix",
    "rjust",
    "rstrip",
    "strip",
    "swapcase",
    "title",
    "upper",
    "zfill",
]
_ATOMS = ["messages[1].content", "word", "messages[0].role", *_TEXTS]
TEXTS = st.recursive(st.sampled_from(_ATOMS), _texts, max_leaves=5)
EXPRESSIONS = TEXTS | st.recursive(st.sampled_from([*_TEXTS, *_NAMES, *_NUMBERS]), _grown, max_leaves=3)


def _nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    body = st.lists(inner, max_size=3).map("".join)
    return st.one_of(
        st.builds("{{% if {} %}}{}{{% else %}}{}{{% endif %}}".format, EXPRESSIONS, body, body),
        st.builds("{{% if {} %}}{}{{% elif {} %}}{}{{% endif %}}".format, EXPRESSIONS, body, EXPRESSIONS, body),
        st.builds("{{%- for m in {} %}}{}{{% else %}}{}{{% endfor -%}}".format, EXPRESSIONS, body, body),
        st.builds("{{% for m in {} if {} %}}{}{{% endfor %}}\n".format, EXPRESSIONS, EXPRESSIONS, body),
        st.builds("{{% for k, m in {}.items() %}}{}{{{{ k }}}}{{% endfor %}}".format, EXPRESSIONS, body),
        st.builds("{{% set m %}}{}{{% endset %}}".format, body),
        st.builds("{{% set m | upper %}}{}{{% endset %}}".format, body),
        st.builds("{{% with m = {} %}}{}{{% endwith %}}".format, EXPRESSIONS, body),
        st.builds("{{% filter trim | upper %}}{}{{% endfilter %}}".format, body),
        st.builds("{{% macro f(m, n={}) %}}{}{{{{ n }}}}{{{{ varargs }}}}{{% endmacro %}}{{{{ f({}) }}}}".format,
                  EXPRESSIONS, body, st.sampled_from(["1", "1, 2", "n=word", "", "1, 2, 3", "z=1", "*words", "**table"])),
        st.builds("{{% macro g(m) %}}<{{{{ caller({}) }}}}>{{% endmacro %}}{{% call(n) g(1) %}}{}{{{{ n }}}}{{% endcall %}}"
                  .format, EXPRESSIONS, body),
        st.builds("{{% for m in [[1, [2]], [3]] recursive %}}{}{{{{ loop(m) if m is iterable else m }}}}{{% endfor %}}"
                  .format, body),
        st.builds("{{% set ns.a = {} %}}{}{{{{ ns.a }}}}".format, EXPRESSIONS, body),
        st.builds("{{% generation %}}{}{{% endgeneration %}}".format, body),
    )  # fmt: skip


_SIMPLE = st.one_of(
    st.sampled_from(["text", "\n", "  ", "<|im_end|>", "{# note #}", "{% continue %}", "{% break %}", "\n    {% if true %}\n  x\n {% endif %}\n"]),
    st.builds("{{{{ {} }}}}".format, EXPRESSIONS),
    st.builds("{{{{- {} -}}}}".format, EXPRESSIONS),
    st.builds("{{% set m = {} %}}".format, EXPRESSIONS),
    st.builds("{{% set m, n = {} %}}".format, EXPRESSIONS),
    st.builds("{{{{ loop.{} }}}}".format, st.sampled_from(_LOOP)),
)  # fmt: skip
TEMPLATES = st.lists(st.recursive(_SIMPLE, _nested, max_leaves=6), min_size=1, max_size=4).map(
    lambda parts: "{% set ns = namespace(a=1) %}" + "".join(parts)
)
