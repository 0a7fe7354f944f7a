"""Line editing for the chat: several lines, a history, completion of commands, and keys that wait during an answer."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import create_output

from edge.commands.chat_commands import Command
from edge.commands.plain_entry import CONTINUED, PROMPT, is_open, unquoted
from edge.errors import StorageError
from edge.paths import data_folder


class LineEditor:
    """Enter ends what is entered, Alt-Enter begins a new line, and so does Enter where triple quotes are open."""

    def __init__(self, commands: Sequence[Command]) -> None:
        # The prompt is not the answer: it goes to stderr, so that stdout can be a pipe.
        self._session: PromptSession[str] = PromptSession(
            PROMPT,
            multiline=True,
            prompt_continuation=CONTINUED,
            key_bindings=_bindings(),
            completer=_Completer(commands),
            complete_while_typing=False,
            history=FileHistory(str(_history_file())),
            output=create_output(stdout=sys.stderr),
        )

    def read(self) -> str:
        """What was entered. Raises EOFError for Ctrl-D and KeyboardInterrupt for Ctrl-C."""
        return unquoted(self._session.prompt())


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter")
    def enter(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_open(buffer.text):
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    def new_line(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    return bindings


class _Completer(Completer):
    """Commands, their values, and files for those that take one."""

    def __init__(self, commands: Sequence[Command]) -> None:
        self._commands = commands
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        text = document.text_before_cursor
        name, space, rest = text.partition(" ")
        if not name.startswith("/"):
            return
        if not space:
            names = [other for command in self._commands for other in command.names if other.startswith(name)]
            yield from (Completion(other, start_position=-len(name)) for other in names)
            return
        for command in self._commands:
            if name not in command.names:
                continue
            values = [value for value in command.values if value.startswith(rest)]
            yield from (Completion(value, start_position=-len(rest)) for value in values)
            if command.takes_file:
                yield from self._paths.get_completions(Document(rest, len(rest)), complete_event)


def _history_file() -> Path:
    """The file of earlier lines, readable by its owner alone."""
    path = data_folder() / "history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_APPEND, 0o600))
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror}; set DSEDGE_HOME to another folder") from error
    return path


@contextmanager
def keys_wait() -> Iterator[None]:
    """Keys neither appear in the answer nor are lost: the terminal keeps them, unseen, for the next line.

    Ctrl-C is no such key. On Windows a console shows typed keys only to who reads them.
    """
    if sys.platform == "win32":
        yield
        return
    import termios

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    quiet = termios.tcgetattr(descriptor)
    quiet[3] &= ~(
        termios.ECHO | termios.ICANON
    )  # not canonical: half a line would wait for its end, Ctrl-D would end it
    quiet[3] |= termios.NOFLSH  # Ctrl-C leaves what was typed before it
    quiet[0] &= ~termios.ICRNL  # Enter stays the key that it is
    termios.tcsetattr(descriptor, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)
