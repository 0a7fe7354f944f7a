"""Messages as callers give them, in the form that chat templates expect."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from edge import texts
from edge.errors import OptionError
from edge.tokenizer import check_text

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_REASONING = ("reasoning_content", "thinking", "reasoning")


class Arguments(dict[str, Any]):
    """A call's arguments that came as JSON text: an object for templates that write JSON, text for those that add."""

    def __init__(self, value: Mapping[str, Any], text: str) -> None:
        super().__init__(value)
        self._text = text

    def __str__(self) -> str:
        return self._text

    def __add__(self, other: str) -> str:
        return self._text + other

    def __radd__(self, other: str) -> str:
        return other + self._text


def prepare(messages: Sequence[Mapping[str, Any]], *, null: bool, named: Collection[str]) -> list[dict[str, Any]]:
    """Messages with content as a string, without fields that are None, with reasoning under each of its names and the
    arguments of calls as objects. `null`: content that is None stays so, for a template that asks.

    Raises OptionError for messages of another form, and for a role that is neither one of `ROLES` nor among `named`,
    the words that the template itself has.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise OptionError(f"the messages are of the type {type(messages).__name__}; they must be a list of objects")
    prepared = [_message(message, number, null=null) for number, message in enumerate(messages)]
    for number, message in enumerate(prepared):
        if message["role"] not in ROLES and message["role"] not in named:
            raise OptionError(
                f"message {number} has the role {message['role']!r}, which the chat template does not name; "
                f"use one of {', '.join(ROLES)}"
            )
    return prepared


def check_tools(tools: object, name: str = "tools") -> None:
    """Raise OptionError for what is no list of objects; what the objects hold is the template's business."""
    if not isinstance(tools, (list, tuple)) or not all(isinstance(tool, Mapping) for tool in tools):
        raise OptionError(
            f'{name}: must be a list of objects such as {{"type": "function", "function": {{"name": ...}}}}'
        )


def _message(message: Mapping[str, Any], number: int, *, null: bool) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise OptionError(f"message {number} is {message!r}; it must be an object with a role and content")
    role = message.get("role")
    # A plain word: templates build control tokens from roles.
    if not isinstance(role, str) or not role.replace("_", "").replace("-", "").isalnum():
        raise OptionError(
            f"message {number} has the role {role!r}; it must be a word such as system, user or assistant"
        )
    result = {key: value for key, value in message.items() if value is not None}
    if "content" in message or "tool_calls" in result:
        content = message.get("content")
        result["content"] = None if null and content is None else _text(content, number)
    elif role in ("system", "user"):
        raise OptionError(f"message {number} has no content; give a string or text parts")
    if isinstance(result.get("tool_calls"), (list, tuple)):
        result["tool_calls"] = [_with_object(call) for call in result["tool_calls"]]
    for key, value in result.items():
        if isinstance(value, str):
            check_text(value, f"the {key} of message {number}")
    reasoning = next((result[name] for name in _REASONING if name in result), None)
    return result if reasoning is None else {"thinking": reasoning, **result, "reasoning_content": reasoning}


def _with_object(call: Any) -> Any:
    """A call whose arguments, if they are the text of a JSON object, are that object."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(text := function.get("arguments"), str):
        return call
    try:
        arguments = texts.parse_json(text or "{}")
    except ValueError:
        return call
    if not isinstance(arguments, dict):
        return call
    return {**call, "function": {**function, "arguments": Arguments(arguments, text)}}


def _text(content: Any, number: int) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, (list, tuple)):
        raise OptionError(f"message {number} has content of type {type(content).__name__}; give a string or text parts")
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if kind != "text" or not isinstance(part.get("text"), str):
            raise OptionError(
                f'message {number} has a part {kind!r}; only {{"type": "text", "text": "..."}} is supported'
            )
    return "".join(part["text"] for part in content)
