"""What the command line of `dsedge run` gives as text: the prompt and the input on stdin, tools, variables, biases."""

from __future__ import annotations

import codecs
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, cast

from edge import texts
from edge.commands import terminal
from edge.errors import NotFoundError, OptionError, StorageError
from edge.messages import check_tools
from edge.paths import expanded

if TYPE_CHECKING:
    from pathlib import Path

    from edge.pipeline import Tools

_PATIENCE_S = 2.0  # how long stdin may stay open before a line says what is waited for


def context(text: str | None) -> int | Literal["auto"] | None:
    """A number, or auto. Raises OptionError for anything else."""
    if text is None or text == "auto":
        return None if text is None else "auto"
    try:
        return int(text)
    except ValueError:
        raise OptionError(f"--context is {text!r}; it must be a number, or auto") from None


def read_prompt(prompt: str | None, *, raw: bool) -> str:
    """What to ask: PROMPT, the text on stdin, or both with a blank line between them; '-' is stdin's text alone.

    Unless `raw`, the text on stdin has no white space around it. With a PROMPT, a stdin that cannot be read gives no
    text, and a note says so. Raises OptionError where there is nothing to ask, StorageError where only stdin was to
    say it and cannot be read.
    """
    words = [] if prompt in (None, "-") else [texts.decode_word(prompt or "")]
    piped = _read_beside(raw=raw) if words else _read_stdin(raw=raw)
    text = "\n\n".join(part for part in (*words, piped) if part)
    if not text:
        raise OptionError("the prompt is empty; give it as an argument or on stdin")
    return text


def _read_beside(*, raw: bool) -> str:
    """The text on stdin that follows a prompt: none from a terminal, and none from a stream that cannot be read."""
    try:
        return "" if sys.stdin.isatty() else _read_stdin(raw=raw)
    except StorageError as error:  # a parent process may pass a stdin that cannot be read
        terminal.note(f"{error}; only the prompt is sent")
        return ""


def _read_stdin(*, raw: bool) -> str:
    """The text on stdin, to the last space if `raw`, otherwise without white space around it.

    Raises OptionError where its bytes are no text, StorageError where it cannot be read.
    """
    try:
        with _patience():
            # Read as bytes, so that line ends stay as they are and `edge.texts` alone decodes.
            data = sys.stdin.buffer.read()
        text = texts.decode_stdin(data, sys.stdin.encoding)
    except OSError as error:
        raise StorageError(f"stdin cannot be read: {error.strerror or error}") from error
    except UnicodeError as error:
        own = codecs.lookup(sys.stdin.encoding).name
        others = "" if own == "utf-8" else f" and no {own}"
        raise OptionError(
            f"the text on stdin is no UTF-8{others}; convert it, or set PYTHONIOENCODING to its encoding"
        ) from error
    return text if raw else text.strip()


@contextmanager
def _patience() -> Iterator[None]:
    """Say what is waited for where stdin does not end: a program that runs this one may have left it open."""
    waiting = "waiting for the end of the text on stdin; `< /dev/null` gives none"
    timer = threading.Timer(_PATIENCE_S, terminal.note, [waiting])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def variable(text: str) -> tuple[str, Any]:
    """A template's variable: `true`, `3` or `["a"]` as JSON, anything else as text."""
    name, equals, value = texts.decode_word(text).partition("=")
    if not name or not equals:
        raise OptionError(f"template variable {text!r} is not NAME=VALUE, such as enable_thinking=false")
    try:
        return name, texts.parse_json(value)
    except ValueError:
        return name, value


def read_json(path: Path) -> Any:
    """The JSON value in a file that the user names. Raises NotFoundError or OptionError."""
    try:
        return texts.read_json(path)
    except OSError as error:
        raise NotFoundError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise OptionError(f"{path}: is not JSON: {error}") from error


def read_tools(name: str) -> Tools:
    """The functions in a file. Raises NotFoundError or OptionError."""
    path = expanded(name)
    tools = read_json(path)
    check_tools(tools, str(path))
    return cast("Tools", tools)


def bias(text: str) -> tuple[int, float]:
    """A token's id and what is added to its logit."""
    identity, _, value = text.partition("=")
    try:
        return int(identity), float(value)
    except ValueError as error:
        raise OptionError(f"logit bias {text!r} is not ID=VALUE, such as 42=-1.5") from error
