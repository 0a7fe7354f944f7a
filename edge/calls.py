"""Calls of tools in what a model writes: the formats in use, as data, and their bodies as structured calls.

Which formats a model has is read off its template and its vocabulary (`find_formats`), never guessed from its text.
Finding a call in streamed text is the splitter's work (edge/sections.py). Nothing is ever executed.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from edge.literals import read_value
from edge.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function that the model wants called. `arguments` is the text of a JSON object, as the OpenAI API has it."""

    id: str
    name: str
    arguments: str

    def to_message(self) -> dict[str, Any]:
        """The call as an entry of a message's `tool_calls`."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


Parsed = tuple[tuple[ToolCall, ...], int]


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How a family writes calls.

    sign      what tells such models: their template says it
    opening   what starts a call
    closing   what ends it; empty: the next opening, or the end of the answer
    first     the characters that a body may start with, as a pattern
    parse     the calls that a body starts with, and where they end; none for a body that starts with anything else
    inner     further tags within the body
    untagged  the opening is the first part of the body itself, and opens a call only where an answer starts
    """

    sign: str
    opening: str
    closing: str
    first: str
    parse: Callable[[str], Parsed]
    inner: tuple[str, ...] = ()
    untagged: bool = False


class CallReader:
    """Reads the body of one call while it streams; what it has looked at is not looked at again."""

    def __init__(self, style: CallFormat) -> None:
        self.style = style
        self._tag = style.closing or style.opening
        self._places = re.compile(r"\\.|[\"']|" + re.escape(self._tag), re.DOTALL)
        self._done = 0  # a closing tag is searched for from here on
        self._quote = ""  # the quote that closes the string that is open at `_done`, if any

    def read(self, text: str, *, last: bool) -> tuple[tuple[ToolCall, ...], str] | None:
        """The calls that the body at the start of `text` starts with, and how the answer goes on: what stands behind
        them in the body is text. No calls if it is no body.

        None while the body may go on, `text` then being longer the next time; `last` says that no more text comes.
        """
        style = self.style
        if not re.match(rf"\s*(?:{style.first}|\Z)", text):
            return (), text
        end = -1 if style.untagged else self._end(text)
        if end < 0 and not last:
            return None
        body, behind = (text, "") if end < 0 else (text[:end], text[end + len(style.closing) :])
        calls, stop = style.parse(body)
        rest = body[stop:]
        if end < 0 and style.closing:  # a quote in the text behind the call hid the tag
            rest = rest.replace(style.closing, "", 1)
        return calls, rest + behind

    def _end(self, text: str) -> int:
        """Where the body ends, -1 while it may go on. A tag inside a string ends nothing."""
        for found in self._places.finditer(text, self._done):
            if found[0] == self._tag and not self._quote:
                return found.start()
            self._done = found.end()
            if found[0] == self._quote:
                self._quote = ""
            elif found[0] in ('"', "'") and not self._quote:
                self._quote = found[0]
        self._done = max(self._done, len(text) - len(self._tag) + 1)
        return -1


def find_formats(template: str, tokenizer: Tokenizer) -> tuple[CallFormat, ...]:
    """The formats of calls that a model knows, one for each opening: those whose sign its template says or its
    vocabulary has as an added token."""
    added = tokenizer.control.ids.keys() | tokenizer.ordinary_added.keys()
    found: dict[str, CallFormat] = {}
    for style in FORMATS:
        if style.sign in template or style.sign in added:
            found.setdefault(style.opening, style)
    return tuple(found.values())


def control_tags(formats: Sequence[CallFormat], tokenizer: Tokenizer) -> dict[int, str]:
    """The tags that are control tokens (id → spelling), which text would not show."""
    control = tokenizer.control.ids
    tags = [tag for style in formats for tag in (style.opening, style.closing, *style.inner)]
    return {control[tag]: tag for tag in tags if tag in control}


def _json_calls(body: str) -> Parsed:
    """Objects, or lists of them, with a name and arguments (Llama: parameters), perhaps within "function"."""
    return _leading(body, _values(body))


def _mistral_calls(body: str) -> Parsed:
    """A list of objects as above, or since tokenizer version 11 NAME[ARGS]{...}, perhaps with a call id between."""
    named = _NAMED.match(body)
    if not named:
        return _json_calls(body)
    name, identity = named.groups()
    return _leading(body, _named_value(body, {"name": name, "id": identity}, named.end()))


def _keyword_calls(body: str) -> Parsed:
    """NAME(key=value, ...), one or more, perhaps in brackets."""
    return _leading(body, _keyword_values(body))


def _llama_calls(body: str) -> Parsed:
    """Objects, or for built-in tools NAME.call(key=value)."""
    found = _json_calls(body)
    return found if found[0] else _keyword_calls(body)


def _leading(body: str, values: Iterator[tuple[Any, int]]) -> Parsed:
    """The calls of values (each with where it ends) up to the first that is no call or is broken; a list of which one
    is no call is none. What separates calls stays no text behind the last of them."""
    calls: list[ToolCall] = []
    end = 0
    try:
        for value, stop in values:
            calls += [_call(each) for each in (value if isinstance(value, list) else (value,))]
            end = stop
    except (ValueError, RecursionError):
        pass
    return tuple(calls), len(body) if _gap(body, end) == len(body) else end


def _call(value: Any) -> ToolCall:
    """Raises ValueError for what is no call of a function with an object of arguments."""
    outer = value if isinstance(value, dict) else {}
    inner = outer["function"] if isinstance(outer.get("function"), dict) else outer
    name, arguments = inner.get("name"), inner.get("arguments", inner.get("parameters"))
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        raise ValueError("no call")
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)  # the decoder takes NaN, which JSON has not
    (name + text).encode()  # an escaped half of a surrogate pair is no text
    identity = outer.get("id")
    # Nine letters and digits: Mistral's templates take no other id.
    return ToolCall(identity if isinstance(identity, str) and identity else secrets.token_hex(5)[:9], name, text)


def _values(text: str) -> Iterator[tuple[Any, int]]:
    done = 0
    while (start := _gap(text, done)) < len(text):
        value, done = read_value(text, start)
        yield value, done


def _named_value(text: str, call: dict[str, Any], start: int) -> Iterator[tuple[Any, int]]:
    value, end = read_value(text, start)
    yield {**call, "arguments": value}, end


def _keyword_values(text: str) -> Iterator[tuple[Any, int]]:
    found = _match(_BRACKET, text, 0)
    done, closing = found.end(), "]" if found[1] else ""
    while (start := _gap(text, done)) < len(text):
        if closing and text[start] == closing:
            yield [], start + 1
            return
        name = _match(_FUNCTION, text, start)
        done, arguments = name.end(), {}
        while not (end := _match(_END, text, done))[1]:
            key = _match(_KEY, text, end.end())
            arguments[key[1]], done = read_value(text, key.end())
        done = end.end()
        yield {"name": name[1].removesuffix(".call"), "arguments": arguments}, done


def _gap(text: str, start: int) -> int:
    """Where the separators between two calls end."""
    return _match(_SEPARATORS, text, start).end()


def _match(pattern: re.Pattern[str], text: str, start: int) -> re.Match[str]:
    found = pattern.match(text, start)
    if not found:
        raise ValueError(f"no {pattern.pattern} at {start}")
    return found


_SEPARATORS = re.compile(r"[\s,;]*")
_NAMED = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*(\w+)\s*)?(?:\[ARGS\])?\s*(?=\{)")
_BRACKET = re.compile(r"\s*(\[?)")
_FUNCTION = re.compile(r"([A-Za-z_][\w.]*)\(")
_KEY = re.compile(r"([A-Za-z_]\w*)\s*=\s*")
_END = re.compile(r"[\s,]*(\)?)")

FORMATS = (
    CallFormat("<tool_call>", "<tool_call>", "</tool_call>", r"[\[{]", _json_calls),  # Hermes, Qwen, SmolLM3, Granite 4
    CallFormat("<|/tool_call|>", "<|tool_call|>", "<|/tool_call|>", r"[\[{]", _json_calls),  # Phi-4-mini
    CallFormat("<|tool_call|>", "<|tool_call|>", "", r"[\[{]", _json_calls),  # Granite 3
    CallFormat("[TOOL_CALLS]", "[TOOL_CALLS]", "", r"[\[{\w]", _mistral_calls, ("[CALL_ID]", "[ARGS]")),
    CallFormat("<function_calls>", "<function_calls>", "</function_calls>", r"[\[\w]", _keyword_calls),  # OLMo 3
    CallFormat("<|python_tag|>", "<|python_tag|>", "", r"[\[{\w]", _llama_calls),
    # Llama 3 has no tag of its own and may begin a call with the text that introduced the tools in the prompt.
    CallFormat("ipython", '{"name"', "", r"\{", _json_calls, untagged=True),
    CallFormat("ipython", '{"type"', "", r"\{", _json_calls, untagged=True),
)
