"""The sections of an answer: reasoning, text and calls of tools, cut apart while the text streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from edge.calls import CallFormat, CallReader, ToolCall
from edge.reasoning import Tags
from edge.stream import overlap


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of what a model writes: of its reasoning, or of its answer, or (without text) a whole call of a tool."""

    text: str
    reasoning: bool = False
    call: ToolCall | None = None


class Splitter:
    """Cuts streamed text into reasoning, answer and calls. White space around tags belongs to none of them.

    Only what the text begins with can open the reasoning, and only once: a tag later in the answer is text. Calls are
    looked for in the answer alone; one whose body is malformed, or cut off, stays text as it is.
    """

    def __init__(self, tags: Tags | None, formats: Sequence[CallFormat] = (), *, opened: bool = False) -> None:
        """`tags`: None for a model that does not reason. `opened`: the text starts inside the reasoning."""
        self._tags = tags
        self._formats = formats
        self._state = "reasoning" if opened else "start" if tags else "answer"
        self._call: CallReader | None = None  # the reader of the call that is open now
        self._held = ""  # what may yet turn out to be a tag or a call, or white space beside one
        self._bare = opened  # nothing of the open section was given out yet: white space at its start is dropped
        self._begun = False  # something of the answer was given out
        self._around: tuple[str, ...] = ()  # tags around the answer, which are dropped

    def push(self, text: str) -> list[Delta]:
        """The pieces that are certain now and were not before."""
        if text and self._state == "answer" and not (self._formats or self._around or self._held or self._bare):
            return [Delta(text)]  # no tag and no call can occur
        self._held += text
        return list(self._cut(last=False))

    def finish(self, stop: str | None = None) -> list[Delta]:
        """The rest, when no more text comes, or where the stop string ended it. Reasoning that was never closed stays
        reasoning; of a tag across which the stop string lies nothing stays."""
        if stop is not None:
            self._held = self._held[: len(self._held) - self._cut_off(stop)]
        return list(self._cut(last=True))

    def _cut_off(self, stop: str) -> int:
        """How much of the end of the held text begins a tag that the stop string cut off."""
        for tag in self._awaited():
            size = overlap(self._held, tag)
            rest = tag[size:]
            if rest.startswith(stop) or stop.startswith(rest):
                return size
        return 0

    def _awaited(self) -> list[str]:
        """The tags that may come now."""
        if self._call is not None:
            return [self._call.style.closing] if self._call.style.closing else []
        if self._state == "answer":
            return [*(style.opening for style in self._formats if not style.untagged), *self._around]
        assert self._tags is not None
        return [self._tags.opening if self._state == "start" else self._tags.closing]

    def _cut(self, *, last: bool) -> Iterator[Delta]:
        if self._state == "start":
            self._start(last=last)
        if self._state == "reasoning":
            yield from self._reason(last=last)
        while self._state == "answer" and self._held:
            before = self._held, self._call
            yield from self._read_call(self._call, last=last) if self._call else self._answer(last=last)
            if before == (self._held, self._call):
                return

    def _start(self, *, last: bool) -> None:
        assert self._tags is not None
        text = self._held.lstrip()
        if text.startswith(self._tags.opening):
            self._held = text[len(self._tags.opening) :]
            self._state, self._bare = "reasoning", True
        elif last or not self._tags.opening.startswith(text):
            self._state = "answer"  # no tag: white space at the start is the answer's own

    def _reason(self, *, last: bool) -> Iterator[Delta]:
        assert self._tags is not None
        text, closing, rest = self._held.partition(self._tags.closing)
        keep = 0 if closing or last else overlap(text, self._tags.closing)
        settled = text[: len(text) - keep].rstrip()
        self._held = rest if closing else "" if last else text[len(settled) :]
        if self._bare:
            settled = settled.lstrip()
        self._bare = bool(closing) or (self._bare and not settled)
        if closing:
            self._state, self._around = "answer", self._tags.around
        if settled:
            yield Delta(settled, reasoning=True)

    def _answer(self, *, last: bool) -> Iterator[Delta]:
        text = self._held.lstrip() if self._bare else self._held
        found = [(start, style) for style in self._formats if (start := self._find(style, text)) >= 0]
        keep = 0
        if found:
            start, style = min(found, key=lambda each: each[0])
            self._call = CallReader(style)
            keep = len(text) - start
        elif not last:
            parts = [self._overlap(style, text) for style in self._formats]
            keep = max([*parts, *(overlap(text, tag) for tag in self._around)], default=0)
        settled = text[: len(text) - keep]
        if self._formats and not (last and not found):
            settled = settled.rstrip()  # white space before a call is no part of the answer
        self._held = text[len(settled) :]
        yield from self._text(settled)

    def _find(self, style: CallFormat, text: str) -> int:
        if not style.untagged:
            return text.find(style.opening)
        blank = len(text) - len(text.lstrip())
        return blank if text.startswith(style.opening, blank) and not self._begun else -1

    def _overlap(self, style: CallFormat, text: str) -> int:
        """How much of the end of `text` may be the start of an opening tag."""
        if style.untagged and (self._begun or not style.opening.startswith(text.lstrip())):
            return 0
        return overlap(text, style.opening)

    def _read_call(self, reader: CallReader, *, last: bool) -> Iterator[Delta]:
        style = reader.style
        blank, opening, rest = self._held.partition(style.opening)
        read = reader.read(opening + rest if style.untagged else rest, last=last)
        if read is None:
            return
        calls, behind = read
        self._call = None
        if calls:
            self._held = behind
            self._bare = self._begun = True
            yield from (Delta("", call=call) for call in calls)
        else:
            self._held = rest
            yield from self._text(blank + opening)

    def _text(self, text: str) -> Iterator[Delta]:
        for tag in self._around:
            text = text.replace(tag, "")
        if self._bare:
            text = text.lstrip()
        if text:
            self._bare, self._begun = False, True
            yield Delta(text)
