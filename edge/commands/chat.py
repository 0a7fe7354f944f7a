"""The interactive chat: a loop over what the person enters, one answer for each message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edge.commands import answer, fitting, terminal
from edge.commands.chat_commands import COMMANDS, Leave, run_command
from edge.commands.conversation import Conversation, Message
from edge.errors import EdgeError, PromptTooLongError
from edge.options import GenerateOptions

if TYPE_CHECKING:
    from edge.pipeline import Pipeline, Tools
    from edge.results import Result

_FULL = "the next message drops the oldest turns; /clear starts anew, and dsedge run --context N holds more"
_FULL_ERROR = "/undo takes the last turn back, /clear starts anew, and dsedge run --context N holds more"


@dataclass(frozen=True, slots=True)
class Entry:
    """Where lines come from. `read` gives what was entered next and raises EOFError at the end; keys that are typed
    within `waiting` do nothing but wait for the next `read`."""

    read: Callable[[], str]
    waiting: Callable[[], AbstractContextManager[None]] = nullcontext


class Chat:
    """A conversation over an opened pipeline.

    `drops`: whether turns that the context cannot hold any more are dropped, the oldest first and each of them whole;
    otherwise they are an error. Raises OptionError or UnsupportedError for options that the template would not heed.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        options: GenerateOptions,
        *,
        entry: Entry,
        system: str | None = None,
        tools: Tools | None = None,
        drops: bool = True,
    ) -> None:
        self.pipeline = pipeline
        self.conversation = Conversation(system)
        self.entry = entry
        self.last: Result | None = None
        self.stats = False  # figures after every answer
        self._tools = tools
        self._drops = drops
        self.options = options
        self.set_options(options)

    def loop(self) -> int:
        """Answer until the person leaves; the exit code. Ctrl-C once clears the line, twice leaves."""
        terminal.note(f"{self.pipeline.bundle.manifest.name}: /? lists the commands, Ctrl-D leaves")
        interrupted = False
        while True:
            try:
                text = self.entry.read()
                interrupted = False
                self._take(text)
            except EOFError:
                terminal.note("")
                return 0
            except Leave:
                return 0
            except KeyboardInterrupt:
                if interrupted:
                    return 0
                interrupted = True
                terminal.note("(Ctrl-C again or Ctrl-D leaves)")
            except PromptTooLongError as error:
                terminal.note(f"dsedge: {self._too_long(error)}")
            except EdgeError as error:
                terminal.note(f"dsedge: {error}")

    def _take(self, text: str) -> None:
        """A command begins with a slash; text that does is entered with a space or a second slash before it."""
        if text.startswith("//"):
            text = text[1:]
        elif text.startswith("/"):
            run_command(self, text)
            return
        if text.strip():
            self.conversation.results.clear()
            self.ask({"role": "user", "content": text.strip()})

    def ask(self, *turn: Message) -> None:
        """Answer. What was said so far stays if the answer is stopped; a turn without an answer is forgotten."""
        self._fit(turn)
        request = self.conversation.request(turn)
        with self.entry.waiting():
            result = answer.stream(self.pipeline, request, self.options, tools=self._tools, page=answer.Page())
        if result.text or result.tool_calls:
            self.conversation.messages += [*turn, result.to_message()]
        if result.finish_reason == "cancel":
            terminal.note("(stopped)")
        self.last = result
        when_full = _FULL if self._drops else _FULL_ERROR
        answer.report(result, self.options, stats=self.stats, when_full=when_full, pipeline=self.pipeline)

    def _fit(self, turn: Sequence[Message]) -> None:
        """Drop oldest turns where the context would leave little room for an answer, until half of it is free.

        Half at once, since the prompt is then read anew from its beginning, which should not happen at every turn.
        """
        context, count = self.pipeline.runtime.layout.context, self._count(turn)
        room = min(self.options.max_tokens or context, context // 4)
        dropped, before = 0, self.conversation.first
        if self._drops and count + room > context:
            while count > context // 2 and self.conversation.drop_oldest(turn):
                dropped, count = dropped + 1, self._count(turn)
        if count > context:  # the latest message alone exceeds the context: dropping others cannot help
            self.conversation.first = before
            raise PromptTooLongError(count, context)
        if dropped:
            turns = "turn is" if dropped == 1 else f"{dropped} turns are"
            terminal.note(f"(the context of {context} tokens is full: the oldest {turns} not sent any more)")

    def _count(self, turn: Sequence[Message]) -> int:
        return len(self.pipeline.encode(self.conversation.request(turn), self.options, tools=self._tools))

    def _too_long(self, error: PromptTooLongError) -> str:
        if self._drops:
            return f"this message is too long: {fitting.too_long(error, self.pipeline)}"
        return f"the conversation has {error.tokens} tokens and the context holds {error.limit}; {_FULL_ERROR}"

    def set_options(self, options: GenerateOptions) -> None:
        """Raises OptionError or UnsupportedError for what the model's template would not heed."""
        template = self.pipeline.template
        if template:
            template.variables(options.thinking, options.chat_template_kwargs, tools=bool(self._tools))
        self.options = options


def open_entry() -> Entry:
    """Line editing with a history file where the terminal can do it, plain lines elsewhere."""
    import sys

    if not (terminal.is_terminal(sys.stdin) and terminal.is_terminal(sys.stderr)):
        from edge.commands.plain_entry import PlainEntry

        return Entry(PlainEntry().read)
    from edge.commands.line_editor import LineEditor, keys_wait

    return Entry(LineEditor(COMMANDS).read, keys_wait)
