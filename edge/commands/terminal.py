"""What commands print with. stdout is for the answer alone; everything else goes to stderr.

Control sequences are written only to a terminal that takes them: never to a file or pipe, nor where TERM is "dumb".
"""

from __future__ import annotations

import codecs
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

from edge.commands.wrapping import columns, fill
from edge.errors import StorageError

if TYPE_CHECKING:
    from rich.console import Console

    from edge.progress import Progress

# C0 without tab and newline, DEL, and C1: what can move a terminal's cursor, or make it answer.
_CONTROL = {code: f"\\x{code:02x}" for code in [*range(32), *range(127, 160)] if code not in (9, 10)}
_UNWRAPPED = 10_000
_READABLE = 24  # a column that is folded to less is hard to read


def is_terminal(stream: IO[str]) -> bool:
    """Whether control sequences may be written to this stream."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def visible(text: str) -> str:
    """The text with control characters spelled out (`\\x1b`), for a terminal to show instead of obeying."""
    return text.translate(_CONTROL)


@contextmanager
def writing_stdout() -> Iterator[None]:
    """Turn what the system has against stdout into a StorageError; that its reader went away stays BrokenPipeError."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise StorageError(f"stdout cannot be written: {error.strerror}; the output is not whole") from error


def say(text: str = "", *, end: str = "\n", flush: bool = False) -> None:
    """Text on stdout, as it is. Raises StorageError if the system does not take it."""
    with writing_stdout():
        print(text, end=end, flush=flush)


def note(message: str, *, indent: int = 0) -> None:
    """A line for the person, on stderr. A terminal gets several where it is too long, all but the first indented."""
    print(fill(visible(message), columns(sys.stderr), indent=indent), file=sys.stderr, flush=True)


def think(text: str) -> None:
    """A piece of a model's reasoning, on stderr: dimmed on a terminal, unless NO_COLOR asks for plain text."""
    dimmed = text and is_terminal(sys.stderr) and not os.environ.get("NO_COLOR")
    print(f"\x1b[2m{visible(text)}\x1b[22m" if dimmed else visible(text), end="", file=sys.stderr, flush=True)


def print_json(data: object) -> None:
    """One line of JSON on stdout: UTF-8, or escapes where the stream is of another encoding. No character is lost."""
    stream = getattr(sys.stdout, "encoding", None) or "utf-8"
    unicode = codecs.lookup(stream).name == "utf-8"
    text = json.dumps(data, ensure_ascii=not unicode)
    # Half of a surrogate pair, which UTF-8 cannot hold, is spelled like JSON's own escape.
    say(text.encode("utf-8", "backslashreplace").decode("utf-8"), flush=True)


def print_table(head: Sequence[str], rows: Sequence[Sequence[object]], stream: IO[str]) -> None:
    """Columns, numbers to the right. Each row is one line; on a terminal the last column is folded where it has room,
    and a row that is still too long goes on at the next line's beginning. So names and figures stay whole."""
    from rich.table import Table

    cells = [[visible(str(cell)) for cell in row] for row in rows]
    out = console(stream)
    if not _is_roomy([head, *cells], out.width):
        out = console(stream, unwrapped=True)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for index, title in enumerate(head):
        numeric, last = bool(rows) and all(_is_figure(row[index]) for row in rows), index == len(head) - 1
        table.add_column(title, justify="right" if numeric else "left", overflow="fold", no_wrap=not last)
    for row in cells:
        table.add_row(*row)
    with writing_stdout():
        out.print(table)


def _is_roomy(rows: Sequence[Sequence[str]], width: int) -> bool:
    """Whether the columns stand whole beside each other, the last of them at least as wide as text is readable."""
    from rich.cells import cell_len

    *widths, last = (max(cell_len(cell) for cell in column) for column in zip(*rows, strict=True))
    return sum(widths) + 2 * len(widths) + min(last, _READABLE) <= width


def _is_figure(cell: object) -> bool:
    """Whether a cell is a number, or a text such as "12.5" or "99.1%"."""
    try:
        float(str(cell).removesuffix("%"))
    except ValueError:
        return False
    return True


def console(stream: IO[str], *, unwrapped: bool = False) -> Console:
    """A console that agrees with `is_terminal`, whatever FORCE_COLOR says. Outside of a terminal no line is wrapped."""
    from rich.console import Console

    terminal = is_terminal(stream)
    options: dict[str, Any] = {} if terminal and not unwrapped else {"width": _UNWRAPPED}
    return Console(file=stream, force_terminal=terminal, markup=False, highlight=False, soft_wrap=False, **options)


@contextmanager
def progress() -> Iterator[Progress]:
    """A callback for what takes long: a line that moves on a terminal, plain lines elsewhere."""
    from edge.commands import bars

    with bars.moving() if is_terminal(sys.stderr) else bars.lines() as show:
        yield show


def megabytes(count: int) -> str:
    """Bytes as decimal megabytes."""
    return f"{count / 1e6:.1f} MB"
