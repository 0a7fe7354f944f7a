"""Reasoning apart from the answer: what a model writes between think tags before it answers.

Whether a model reasons is read off its template and its vocabulary, never guessed from its text: the first pair of
`TAGS` of which the template mentions a tag, or the vocabulary has one as an added token, counts. The opening tag may be
the model's own first word, or the template may have written it already, as the end of the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edge.tokenizer import Tokenizer

_TAIL = 16  # ids at the end of a prompt among which an opening tag, whole or in pieces, and white space have room


@dataclass(frozen=True, slots=True)
class Tags:
    """A pair of tags, and the ids of those that are control tokens (id → spelling), which text would not show."""

    opening: str
    closing: str
    spelled: dict[int, str]


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of what a model writes, of its reasoning or of its answer."""

    text: str
    reasoning: bool = False


TAGS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))


def find_tags(template: str, tokenizer: Tokenizer) -> Tags | None:
    """The tags of a model that reasons, None for one that does not."""
    control = tokenizer.control.ids
    for opening, closing in TAGS:
        if any(tag in template or tag in tokenizer.ordinary_added or tag in control for tag in (opening, closing)):
            return Tags(opening, closing, {control[tag]: tag for tag in (opening, closing) if tag in control})
    return None


def is_opened(prompt: Sequence[int], tags: Tags, tokenizer: Tokenizer) -> bool:
    """Whether a prompt ends in the opening tag, so that the answer starts inside the reasoning."""
    text = ""
    run: list[int] = []
    for token in prompt[-_TAIL:]:
        if token in tags.spelled:
            text += tokenizer.decode(run) + tags.spelled[token]
            run = []
        elif tokenizer.is_silent(token):  # a turn's mark: what stands before it is a message's
            text, run = "", []
        else:
            run.append(token)
    return (text + tokenizer.decode(run)).rstrip().endswith(tags.opening)


class Splitter:
    """Cuts streamed text into reasoning and answer. White space around the tags belongs to neither.

    Only what the text begins with can open the reasoning, and only once: a tag later in the answer is text.
    """

    def __init__(self, tags: Tags, *, opened: bool) -> None:
        self._tags = tags
        self._state = "reasoning" if opened else "start"
        self._held = ""  # what may yet turn out to be a tag, or white space beside one
        self._bare = True  # nothing of the present part was given out yet

    def push(self, text: str) -> list[Delta]:
        """The pieces that are certain now and were not before."""
        self._held += text
        found: list[Delta] = []
        if self._state == "start":
            self._start()
        if self._state == "reasoning":
            found += self._reason()
        if self._state == "answer":
            found += self._answer()
        return found

    def finish(self) -> list[Delta]:
        """The rest, when no more text comes. Reasoning that was never closed stays reasoning."""
        held, self._held = self._held, ""
        if self._state == "reasoning":
            held = (held.lstrip() if self._bare else held).rstrip()
        return [Delta(held, self._state == "reasoning")] if held else []

    def _start(self) -> None:
        text = self._held.lstrip()
        if text.startswith(self._tags.opening):
            self._held = text[len(self._tags.opening) :]
            self._state = "reasoning"
        elif not self._tags.opening.startswith(text):
            self._state, self._bare = "answer", False  # no tag: white space at the start is the answer's own

    def _reason(self) -> list[Delta]:
        text, closing, rest = self._held.partition(self._tags.closing)
        if closing:
            self._state, self._held = "answer", rest
            text = text.rstrip()
        else:
            keep = _overlap(text, self._tags.closing)
            settled = text[: len(text) - keep].rstrip()
            text, self._held = settled, text[len(settled) :]
        if self._bare:
            text = text.lstrip()
        self._bare = bool(closing) or (self._bare and not text)
        return [Delta(text, reasoning=True)] if text else []

    def _answer(self) -> list[Delta]:
        text = self._held.lstrip() if self._bare else self._held
        self._held = ""
        self._bare = self._bare and not text
        return [Delta(text)] if text else []


def _overlap(text: str, tag: str) -> int:
    """How long the longest end of `text` is that starts `tag`."""
    return next((size for size in range(min(len(text), len(tag) - 1), 0, -1) if text.endswith(tag[:size])), 0)
