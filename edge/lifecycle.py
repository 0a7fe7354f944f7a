"""The end of the interpreter: compiled code that runs in other threads has ended before it.

A thread that comes back from compiled code after the interpreter began to end is unwound by force (CPython up to 3.13),
which C++ does not survive: the process aborts. Exit handlers run before that. The one here closes what is open, then
lets no thread into compiled code any more and waits for those that are inside.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from typing import Protocol


class Closable(Protocol):
    def close(self) -> None: ...


class _Compiled:
    """A context manager around calls of compiled code that gives up the interpreter's lock. It may be nested.

    A thread that would enter it after the end has begun waits for ever, as any thread does from CPython 3.14 on.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._inside = 0
        self._ending = False  # the interpreter ends, and `close_all` is closing what is open
        self._ended = False

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            return  # the main thread ends the interpreter itself and cannot wait for that
        with self._changed:
            while self._ended:
                self._changed.wait()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        if threading.current_thread() is threading.main_thread():
            return
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def begin_to_end(self) -> None:
        self._ending = True

    def rest_if_ending(self) -> None:
        """Where the end has begun, wait for ever, except in the main thread: there is nobody left to tell an error."""
        if self._ending and threading.current_thread() is not threading.main_thread():
            threading.Event().wait()

    def end(self) -> None:
        """Let nobody in any more, and wait for those who are inside."""
        with self._changed:
            self._ended = True
            while self._inside:
                self._changed.wait()


compiled = _Compiled()
_open: weakref.WeakSet[Closable] = weakref.WeakSet()


def close_at_exit(item: Closable) -> None:
    """Close this before the interpreter ends, if it is still there."""
    _open.add(item)


def _end() -> None:
    compiled.begin_to_end()
    try:
        for item in list(_open):
            item.close()
    finally:
        compiled.end()


def _forget() -> None:
    """In a forked process: no other thread is there, and a lock that one of them held stays locked."""
    compiled.reset()
    _open.clear()


atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
