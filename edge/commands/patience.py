"""Signs of life on stderr while something takes long: a line of its own on a terminal, which goes when it is done."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType

from edge.commands import terminal

_SILENCE_S = 1.0  # what is done sooner needs no sign


class Sign:
    """`what (3 s)`, counted up once a second by a thread, on a terminal that takes control sequences; else nothing.

    A context manager; `stop` may be called before its end, and as often as one likes.
    """

    def __init__(self, what: str) -> None:
        self._what = terminal.visible(what)
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Sign:
        if terminal.is_terminal(sys.stderr):
            self._thread = threading.Thread(target=self._count, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Take the sign away, so that something else can be written there."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _count(self) -> None:
        start = time.monotonic()
        shown = False
        while not self._stopped.wait(_SILENCE_S):
            shown = True
            self._write(f"\r{self._what} ({time.monotonic() - start:.0f} s)")
        if shown:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        try:
            print(text, end="", file=sys.stderr, flush=True)
        except OSError:  # stderr cannot be written; the next message to it reports that
            self._stopped.set()
