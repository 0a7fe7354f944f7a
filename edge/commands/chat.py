"""The interactive chat: a loop over lines, its commands, and line editing where the terminal can do it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.commands import answer, terminal
from edge.errors import EdgeError, OptionError, StorageError
from edge.files import write_whole
from edge.options import GenerateOptions
from edge.paths import data_folder

if TYPE_CHECKING:
    from edge.generation import Result
    from edge.pipeline import Pipeline, Tools

PROMPT = ">>> "
HELP = """\
/help          this list
/reset         forget the conversation (the system prompt stays)
/system TEXT   set the system prompt; without TEXT show it
/thinking on   let the model reason before it answers; /thinking off: not
/result TEXT   what a tool that the model called gave; nothing is called by itself
/save FILE     write the conversation to FILE as JSON
/stats         figures of the last answer
/quit          leave; so does Ctrl-D, or Ctrl-C twice
Ctrl-C stops an answer and keeps the conversation."""


class Chat:
    """A conversation over an opened pipeline. `read` gives the next line and raises EOFError at the end.

    Raises OptionError or UnsupportedError for options that the model's template would not heed.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        options: GenerateOptions,
        *,
        system: str | None = None,
        tools: Tools | None = None,
        stats: bool = False,
        read: Callable[[], str] | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._tools = tools
        self._set_options(options)
        self._system = system
        self._stats = stats
        self._read = read or line_reader()
        self._messages: list[dict[str, Any]] = []
        self._results: list[dict[str, Any]] = []  # of the latest answer's calls, until all of them are there
        self._last: Result | None = None

    def loop(self) -> int:
        """Answer lines until the person leaves; the exit code. Ctrl-C once clears the line, twice leaves."""
        terminal.note(f"{self._pipeline.bundle.manifest.name}: /help lists the commands, Ctrl-D leaves")
        interrupted = False
        while True:
            try:
                line = self._read().strip()
                interrupted = False
                if line == "/quit":
                    return 0
                if line:
                    self._take(line)
            except EOFError:
                terminal.note("")
                return 0
            except KeyboardInterrupt:
                if interrupted:
                    return 0
                interrupted = True
                terminal.note("(Ctrl-C again or Ctrl-D leaves)")
            except EdgeError as error:
                terminal.note(f"dsedge: {error}")

    def _take(self, line: str) -> None:
        if line.startswith("/"):
            self._command(*line.partition(" ")[::2])
        else:
            self._results.clear()
            self._ask({"role": "user", "content": line})

    def _ask(self, *turn: dict[str, Any]) -> None:
        """One turn. What was said so far stays if the answer is stopped; a turn without an answer is forgotten."""
        system = [] if self._system is None else [{"role": "system", "content": self._system}]
        result = answer.stream(self._pipeline, [*system, *self._messages, *turn], self._options, tools=self._tools)
        if result.text or result.tool_calls:
            self._messages += [*turn, result.to_message()]
        if result.finish_reason == "cancel":
            terminal.note("(stopped)")
        self._last = result
        answer.report(result, self._options, stats=self._stats)

    def _command(self, name: str, rest: str) -> None:
        actions: dict[str, Callable[[str], None]] = {
            "/help": lambda _: terminal.note(HELP),
            "/reset": self._reset,
            "/system": self._set_system,
            "/thinking": self._set_thinking,
            "/result": self._give_result,
            "/save": self._save,
            "/stats": self._show_stats,
        }
        if name not in actions:
            raise OptionError(f"unknown command {name}; known are {', '.join([*actions, '/quit'])}")
        actions[name](rest.strip())

    def _reset(self, _: str) -> None:
        self._messages.clear()
        self._results.clear()
        terminal.note("the conversation starts anew")

    def _set_system(self, text: str) -> None:
        if text:
            self._system = text
        terminal.note(f"system prompt: {self._system if self._system is not None else 'none'}")

    def _set_options(self, options: GenerateOptions) -> None:
        template = self._pipeline.template
        if template:
            template.variables(options.thinking, options.chat_template_kwargs, tools=bool(self._tools))
        self._options = options

    def _set_thinking(self, word: str) -> None:
        if word not in ("on", "off"):
            raise OptionError("/thinking is followed by on or off")
        self._set_options(replace(self._options, thinking=word == "on"))
        terminal.note(f"thinking: {word}")

    def _give_result(self, text: str) -> None:
        """The result of the next call that has none; the last one goes on with the conversation."""
        calls: Sequence[dict[str, Any]] = self._messages[-1].get("tool_calls", ()) if self._messages else ()
        if not calls:
            raise OptionError("no call of a tool waits for a result")
        call = calls[len(self._results)]
        self._results.append(
            {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": text}
        )
        if len(self._results) < len(calls):
            terminal.note(f"{len(calls) - len(self._results)} more to give")
            return
        results, self._results = self._results, []
        self._ask(*results)

    def _show_stats(self, _: str) -> None:
        terminal.note(answer.describe(self._last) if self._last else "no answer yet")

    def _save(self, name: str) -> None:
        if not name:
            raise OptionError("/save needs the name of a file")
        path = Path(name).expanduser()
        saved = {
            "model": self._pipeline.bundle.manifest.name,
            "system": self._system,
            "messages": self._messages,
        }
        try:
            write_whole(path, json.dumps(saved, ensure_ascii=False, indent=2) + "\n")
        except OSError as error:
            raise StorageError(f"{path}: cannot be written: {error.strerror}") from error
        terminal.note(f"saved {len(self._messages)} messages to {path}")


def line_reader() -> Callable[[], str]:
    """Line editing with a history file where the terminal can do it, plain lines elsewhere."""
    if not (terminal.is_terminal(sys.stdin) and terminal.is_terminal(sys.stderr)):
        return _plain_line
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import FileHistory
    from prompt_toolkit.output import create_output

    # The prompt is not the answer: it goes to stderr, so that stdout can be a pipe.
    session: PromptSession[str] = PromptSession(
        history=FileHistory(str(_history_file())), output=create_output(stdout=sys.stderr)
    )
    return lambda: session.prompt(PROMPT)


def _plain_line() -> str:
    print(PROMPT, end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line


def _history_file() -> Path:
    """The file of earlier lines, readable by its owner alone."""
    path = data_folder() / "history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_APPEND, 0o600))
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror}; set DSEDGE_HOME to another folder") from error
    return path
