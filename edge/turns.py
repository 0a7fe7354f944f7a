"""Which answer may use the session: one at a time, from its first step to its last. That time is the answer's turn.

An answer keeps its turn while nobody reads it, and any thread may go on reading it; other answers wait. A thread that
begins a second answer while it reads the first would wait for itself: `Turn.take` raises OptionError there.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar

import numpy as np
import numpy.typing as npt

from edge.errors import ClosedError, OptionError
from edge.lifecycle import compiled
from edge.session import Session

_LOOK_S = 0.02  # how often a waiting answer checks whether it was cancelled
_PATIENCE_S = 1.0  # how long nothing may move before the garbage collector looks for a lost answer; then twice that, …


# The reader of an answer where that is not the thread that runs the step: a task of asyncio. None: the thread.
reader: ContextVar[object] = ContextVar("reader", default=None)


class _Here(threading.local):
    """A mark of each thread that, unlike its ident, is never given to another one."""

    def __init__(self) -> None:
        self.mark = object()


class Turns:
    """The session of a pipeline and who may use it. `closed` is for good."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.closed = False
        # Re-entrant: the garbage collector may end a lost answer in a thread that is in here.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._here = _Here()
        self._current: Turn | None = None
        self._reader: object = None  # the thread that took the latest step of the current answer
        self._stepping: object = None  # the thread that runs a step right now
        self._moved = 0.0  # when the latest step ended
        self._patience = _PATIENCE_S

    def close(self) -> None:
        """Free the runtime, after the step that runs right now. Idempotent. An unfinished answer ends as if cancelled.

        Called from within a step (by a signal handler), it leaves the freeing to that step's end.
        """
        with self._lock:
            self.closed = True
            self._changed.notify_all()
            if self._stepping is self._here.mark:
                return
            while self._stepping is not None:
                self._changed.wait()
            self.session.runtime.close()

    def _take(self, turn: Turn, cancelled: Callable[[], bool]) -> bool:
        here, searched = self._who(), False
        while True:
            with self._lock:
                if self.closed:
                    raise ClosedError("this pipeline is closed; load the model again")
                if cancelled():
                    return False
                if self._current is None:
                    self._current, self._reader = turn, here
                    self._move()
                    return True
                mine = self._reader is here
                if mine and searched:
                    raise OptionError(
                        "an answer of this pipeline is still being read here; finish it or close it first"
                    )
                if not mine:
                    self._changed.wait(_LOOK_S)
                lost = mine or (self._stepping is None and time.monotonic() - self._moved > self._patience)
                self._patience *= 2 if lost else 1
            if lost:  # perhaps dropped in a reference cycle, where it keeps its turn until the collector finds it
                gc.collect()
                searched = True

    def _begin(self, turn: Turn) -> bool:
        with self._lock:
            assert self._current is turn
            if self.closed:
                return False
            self._reader, self._stepping = self._who(), self._here.mark
            return True

    def _end(self) -> None:
        with self._lock:
            if self._stepping is self._here.mark:  # else it never began
                self._move()
                self._rest()

    def _leave(self, turn: Turn) -> None:
        with self._lock:
            if self._current is turn:
                self._current = self._reader = None
                self._rest()  # an interrupt may have come before `_end`

    def _who(self) -> object:
        return reader.get() or self._here.mark

    def _move(self) -> None:
        self._moved, self._patience = time.monotonic(), _PATIENCE_S

    def _rest(self) -> None:
        self._stepping = None
        if self.closed:
            self.session.runtime.close()
        self._changed.notify_all()


class Turn:
    """One answer's turn: `take` it, `feed` the session step by step, `leave`."""

    def __init__(self, turns: Turns) -> None:
        self.session = turns.session
        self._turns = turns

    def take(self, cancelled: Callable[[], bool] = lambda: False) -> bool:
        """Wait for the turn; False if cancelled before.

        Raises ClosedError when the pipeline is closed, OptionError where this thread would wait for itself.
        """
        try:
            return self._turns._take(self, cancelled)
        except ClosedError:
            compiled.rest_if_ending()
            raise

    def feed(self, tokens: Sequence[int], cancelled: Callable[[], bool]) -> npt.NDArray[np.float32] | None:
        """`Session.feed`, of which a closed pipeline is a cancellation too."""
        turns = self._turns
        try:
            if not turns._begin(self):
                return None
            return self.session.feed(tokens, cancelled=lambda: turns.closed or cancelled())
        finally:
            turns._end()

    def leave(self) -> None:
        """Let the next one go. Idempotent, also where the turn was never taken."""
        self._turns._leave(self)
