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


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How a family writes calls.

    sign      what tells such models: their template says it
    opening   what starts a call
    closing   what ends it; empty: the next opening, or the end of the answer
    first     the characters that a body may start with, as a pattern
    parse     the calls of a body; none for a body that holds anything else
    inner     further tags within the body
    untagged  the opening is the first part of the body itself, and opens a call only where an answer starts
    """

    sign: str
    opening: str
    closing: str
    first: str
    parse: Callable[[str], tuple[ToolCall, ...]]
    inner: tuple[str, ...] = ()
    untagged: bool = False


class CallReader:
    """Reads the body of one call while it streams; what it has looked at is not looked at again."""

    def __init__(self, style: CallFormat) -> None:
        self.style = style
        self._done = 0  # no tag before here ends the body
        self._quoted = False  # whether a JSON string is open there

    def read(self, text: str, *, last: bool) -> tuple[tuple[ToolCall, ...], int] | None:
        """The calls of the body that `text` starts with, and where the answer goes on; no calls if it is no body.

        None while the body may go on, `text` then being longer the next time; `last` says that no more text comes.
        """
        style = self.style
        if not re.match(rf"\s*(?:{style.first}|\Z)", text):
            return (), 0
        end = -1 if style.untagged else self._end(text, style.closing or style.opening)
        if end >= 0:
            return style.parse(text[:end]), end + len(style.closing)
        return (style.parse(text), len(text)) if last else None

    def _end(self, text: str, tag: str) -> int:
        """Where the body ends, -1 while it may go on. A tag inside a JSON string ends nothing."""
        while (end := text.find(tag, self._done)) >= 0:
            quotes = _ESCAPE.sub("", text[self._done : end]).count('"')
            self._quoted ^= quotes % 2 == 1
            if not self._quoted:
                break
            self._done = end + len(tag)
        return end


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


def _json_calls(body: str) -> tuple[ToolCall, ...]:
    """Objects, or lists of them, with a name and arguments (Llama: parameters), perhaps within "function"."""
    return _all(_json_values(body))


def _mistral_calls(body: str) -> tuple[ToolCall, ...]:
    """A list of objects as above, or since tokenizer version 11 NAME[ARGS]{...}, perhaps with a call id between."""
    named = _NAMED.fullmatch(body)
    if not named:
        return _json_calls(body)
    name, identity, arguments = named.groups()
    return _all({"name": name, "id": identity, "arguments": value} for value in _json_values(arguments))


def _keyword_calls(body: str) -> tuple[ToolCall, ...]:
    """NAME(key=value, ...), one or more, perhaps in brackets; values as in JSON or True, False and None."""
    return _all(_keyword_values(body.strip().removeprefix("[").removesuffix("]")))


def _llama_calls(body: str) -> tuple[ToolCall, ...]:
    """Objects, or for built-in tools NAME.call(key=value)."""
    return _json_calls(body) or _keyword_calls(body)


def _all(values: Iterator[Any]) -> tuple[ToolCall, ...]:
    """A call from each value, or none at all where one of them is no call or the text is broken."""
    try:
        return tuple(_call(value) for value in values)
    except (ValueError, RecursionError):
        return ()


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


def _json_values(text: str) -> Iterator[Any]:
    done = 0
    while (start := _gap(text, done)) < len(text):
        value, done = _DECODER.raw_decode(text, start)
        yield from value if isinstance(value, list) else (value,)


def _keyword_values(text: str) -> Iterator[Any]:
    done = 0
    while (start := _gap(text, done)) < len(text):
        name = _match(_FUNCTION, text, start)
        done, arguments = name.end(), {}
        while not (end := _match(_END, text, done))[1]:
            key = _match(_KEY, text, end.end())
            word = _WORD.match(text, key.end())
            if word:
                arguments[key[1]], done = _WORDS[word[0]], word.end()
            else:
                arguments[key[1]], done = _DECODER.raw_decode(text, key.end())
        done = end.end()
        yield {"name": name[1].removesuffix(".call"), "arguments": arguments}


def _gap(text: str, start: int) -> int:
    """Where the separators between two calls end."""
    return _match(_SEPARATORS, text, start).end()


def _match(pattern: re.Pattern[str], text: str, start: int) -> re.Match[str]:
    found = pattern.match(text, start)
    if not found:
        raise ValueError(f"no {pattern.pattern} at {start}")
    return found


_DECODER = json.JSONDecoder()
_SEPARATORS = re.compile(r"[\s,;]*")
_ESCAPE = re.compile(r"\\.", re.DOTALL)
_NAMED = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*(\w+)\s*)?(?:\[ARGS\])?\s*(\{.*)", re.DOTALL)
_FUNCTION = re.compile(r"([A-Za-z_][\w.]*)\(")
_KEY = re.compile(r"([A-Za-z_]\w*)\s*=\s*")
_END = re.compile(r"[\s,]*(\)?)")
_WORD = re.compile(r"(?:True|False|None)\b")
_WORDS = {"True": True, "False": False, "None": None}

FORMATS = (
    CallFormat("<tool_call>", "<tool_call>", "</tool_call>", r"[\[{]", _json_calls),  # Hermes, Qwen, SmolLM3, Granite 4
    CallFormat("<|/tool_call|>", "<|tool_call|>", "<|/tool_call|>", r"[\[{]", _json_calls),  # Phi-4-mini
    CallFormat("<|tool_call|>", "<|tool_call|>", "", r"[\[{]", _json_calls),  # Granite 3
    CallFormat("[TOOL_CALLS]", "[TOOL_CALLS]", "", r"[\[{\w]", _mistral_calls, ("[CALL_ID]", "[ARGS]")),
    CallFormat("<function_calls>", "<function_calls>", "</function_calls>", r"[\[\w]", _keyword_calls),  # OLMo 3
    CallFormat("<|python_tag|>", "<|python_tag|>", "", r"[\[{\w]", _llama_calls),
    # Llama 3 tags no call of its own, and may begin one as the tools begin that it was shown.
    CallFormat("ipython", '{"name"', "", r"\{", _json_calls, untagged=True),
    CallFormat("ipython", '{"type"', "", r"\{", _json_calls, untagged=True),
)
