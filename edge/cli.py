"""The command line: finds the command, runs it, and turns every way that it can end into one line and an exit code.

    0    done
    1    our fault: a bug, or numbers that are not finite
    2    the user can mend it: a wrong option, a missing or damaged file, no space left
    130  stopped by Ctrl-C
    141  whoever read the output went away
    143  stopped by SIGTERM

Each command is a frozen dataclass: its fields are the options, `execute` does the work. Only the module of
the command that was asked for is imported, since starting up is part of the time to the first token.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import IO, Annotated, Any, Protocol

import typer

import edge
from edge.commands import terminal
from edge.errors import EdgeError

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("edge.commands.run", "Run"),
    "export": ("edge.commands.export", "Export"),
    "inspect": ("edge.commands.inspect", "Inspect"),
    "verify": ("edge.commands.verify", "Verify"),
    "sign": ("edge.commands.sign", "Sign"),
    "eval": ("edge.commands.evaluate", "Evaluate"),
    "doctor": ("edge.commands.doctor", "Doctor"),
    "bench": ("edge.commands.bench", "Bench"),
    "list": ("edge.commands.models", "List"),
    "pull": ("edge.commands.models", "Pull"),
    "import": ("edge.commands.models", "Import"),
    "rm": ("edge.commands.models", "Remove"),
    "completion": ("edge.commands.complete", "Completion"),
}
INTERRUPTED = 130
PIPE_CLOSED = 141


class Command(Protocol):
    """What a command module offers: parsed options that can be executed. The result is the exit code."""

    def execute(self) -> int: ...


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code. Nothing escapes but SystemExit of the interpreter itself."""
    words, debug = _take_debug(sys.argv[1:] if arguments is None else arguments)
    _replace_closed_streams()
    _tolerate_encodings()
    try:
        with _ending_on_signals(), warnings.catch_warnings():
            if not debug:
                warnings.showwarning = _warn
            code = _run(words)
        with terminal.writing_stdout():
            sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _settle(sys.stdout)
        return PIPE_CLOSED
    except Exception as error:
        _settle(sys.stdout)
        return _report(error, debug=debug)


@contextmanager
def _ending_on_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the program as its own end would: what is half done is undone. Exit code 128 + number."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is signal.SIG_DFL:  # `nohup` has it ignored
                before[number] = signal.signal(number, _end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _run(words: Sequence[str]) -> int:
    app = _build(words)
    with terminal.writing_stdout():  # help
        command = app(list(words), prog_name="dsedge", standalone_mode=False)
    if isinstance(command, int):
        return command  # --help and --version end in typer itself
    found: Command = command
    return found.execute()


def _build(words: Sequence[str]) -> typer.Typer:
    """The typer application with the command that `words` name, or with all of them (for help and for errors)."""
    # typer's completion takes part only when a shell asks for it: its own two options would crowd the help.
    app = typer.Typer(
        add_completion="_DSEDGE_COMPLETE" in os.environ,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_global_options)
    named = next((word for word in words if not word.startswith("-")), "")
    for name in [named] if named in COMMANDS else COMMANDS:
        module, attribute = COMMANDS[name]
        app.command(name)(getattr(importlib.import_module(module), attribute))
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dsedge {edge.__version__}")
        raise typer.Exit


def _global_options(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
    _debug: Annotated[bool, typer.Option("--debug", help="Show a traceback on errors; works anywhere.")] = False,
) -> None:
    """Export language models to int4 bundles, and run them on this machine."""


def _take_debug(words: Sequence[str]) -> tuple[list[str], bool]:
    """The words without `--debug`, which people add to the end of a command that failed; words after `--` are text."""
    end = words.index("--") if "--" in words else len(words)
    kept = [word for word in words[:end] if word != "--debug"]
    return [*kept, *words[end:]], len(kept) < end


def _report(error: Exception, *, debug: bool) -> int:
    """One line on stderr, after a traceback if it was asked for; the exit code."""
    if debug:
        traceback.print_exception(error)
    if isinstance(error, EdgeError):
        return _fail(str(error), error.exit_code)
    if isinstance(error, typer.TyperException):
        return _fail(f"{error.format_message()} (see dsedge --help)", error.exit_code)
    if isinstance(error, OSError) and error.filename is not None:  # a file that no command expected trouble with
        return _fail(f"{error.filename}: {error.strerror}", 2)
    if isinstance(error, FileNotFoundError) and _folder_is_gone():
        return _fail("the current folder is not there any more; change to another one", 2)
    text = f"{type(error).__name__}: {error}"
    return _fail(f"unexpected {text}; this is a bug: --debug shows where it happened", 1)


def _folder_is_gone() -> bool:
    """Whether somebody has removed the current folder, so that no relative path means anything."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: object = None,
    line: object = None,
) -> None:
    """A library's warning as one line, without the place in its sources, which --debug shows."""
    terminal.note(f"dsedge: warning: {' '.join(str(message).split())} ({category.__name__}; --debug shows where)")


def _fail(message: str, code: int) -> int:
    try:
        terminal.note(f"dsedge: {' '.join(message.split())}")
    except OSError:  # there is nobody left to tell; the exit code says it
        _settle(sys.stderr)
    return code


def _settle(stream: IO[str]) -> None:
    """Flush a stream; point a broken one elsewhere, so that the interpreter's flush at exit does not complain again."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _replace_closed_streams() -> None:
    """A standard stream that is closed (by the shell: None) is replaced: it reads nothing, and writes to nowhere."""
    # In this order: each takes the lowest free descriptor, its own, which no other file may then get.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None or stream.closed:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (it lasts as long as we do)


def _tolerate_encodings() -> None:
    """A character that the output's encoding lacks becomes '?', not an exception in the middle of an answer."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure: Any = getattr(stream, "reconfigure", None)
        if reconfigure:
            reconfigure(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
