"""What a chat template writes around messages: its marks, and which of them ends the assistant's turn.

Both are read off conversations that the template renders. A mark is a word in brackets, such as <|im_start|>; whether
it is a token is for the vocabulary to say. The token behind an assistant's words ends a turn, whatever the source says
about its end tokens besides: a model that was trained with the template writes it there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from edge.chat import ChatTemplate
from edge.errors import CheckpointError, EdgeError, found_in
from exporters.checkpoint.enders import Notes
from exporters.checkpoint.templates import DEFAULT

_ANSWER = "Zwanzigtausend"  # a word that no template writes or searches for
_ARGUMENT = "Dreissigtausend"
_MARK = re.compile(r"<[^<>\s]{1,64}>|\[[^\[\]\s]{1,64}\]")
_USER = {"role": "user", "content": "Hi"}
_SYSTEM = {"role": "system", "content": "Be brief"}
_ASSISTANT = {"role": "assistant", "content": _ANSWER}
_CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"type": "function", "id": "callcall1", "function": {"name": "look", "arguments": {"what": _ARGUMENT}}}
    ],
}
_TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look something up",
        "parameters": {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]},
    },
}
_RESULT = {"role": "tool", "content": "Found", "name": "look", "tool_call_id": "callcall1"}
# Conversations, and the tools offered in them. A template may refuse some, such as one that knows no system prompt.
_CONVERSATIONS: tuple[tuple[list[dict[str, Any]], list[dict[str, Any]] | None], ...] = (
    ([_USER, _ASSISTANT], None),
    ([_USER, _ASSISTANT, _USER], None),
    ([_SYSTEM, _USER, _ASSISTANT, _USER], None),
    ([_USER, _CALL, _RESULT, _ASSISTANT, _USER], [_TOOL]),
)


@dataclass(frozen=True, slots=True)
class Rendered:
    """A template's own text, and what it made of the conversations that it took."""

    name: str
    source: str
    texts: tuple[str, ...]

    @property
    def title(self) -> str:
        return "chat template" if self.name == DEFAULT else f"chat template {self.name!r}"


def render(where: str, templates: Mapping[str, str], special: Mapping[str, str], notes: Notes) -> tuple[Rendered, ...]:
    """Render every template; one that takes no conversation is noted. Raises CheckpointError for an invalid one."""
    found = []
    for name, source in templates.items():
        with found_in(CheckpointError, f"{where}: chat template {name!r}"):
            template = ChatTemplate(source, special)
        refusals: list[EdgeError] = []
        one = Rendered(name, source, tuple(_conversations(template, refusals)))
        if not one.texts:
            notes.add(f"the {one.title} renders no conversation of those that were tried: {refusals[0]}")
        found.append(one)
    return tuple(found)


def _conversations(template: ChatTemplate, refusals: list[EdgeError]) -> Iterator[str]:
    for messages, tools in _CONVERSATIONS:
        for prompt in (False, True):
            try:
                yield template.render(messages, tools=tools, add_generation_prompt=prompt)
            except EdgeError as error:  # a template may refuse any of them
                refusals.append(error)


def find_marks(rendered: Iterable[Rendered]) -> set[str]:
    """Every word in brackets that the templates write, or might write in a conversation that was not tried."""
    return {mark for one in rendered for text in (one.source, *one.texts) for mark in _MARK.findall(text)}


def turn_ends(rendered: Iterable[Rendered], tokens: Mapping[str, int]) -> dict[str, str]:
    """Those of `tokens` (spelling → id) that a template writes behind an assistant's words, with its title."""
    longest_first = sorted((token for token in tokens if token.strip()), key=len, reverse=True)
    found: dict[str, str] = {}
    for one in rendered:
        for text in one.texts:
            for match in re.finditer(_ANSWER, text):
                rest = text[match.end() :].lstrip()
                token = next((token for token in longest_first if rest.startswith(token)), None)
                if token is not None:
                    found.setdefault(token, one.title)
    return found
