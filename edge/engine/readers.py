"""Threads that read answers of one engine. Whoever waits for a token steps the engine, and with it all other answers.

One step runs at a time. A reader that finds another one's step running waits for its end, and then finds its token, or
steps itself; so a reader alone never switches threads. An answer that nobody reads pauses, and holds up nobody.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from edge import saving
from edge.bundle import Bundle
from edge.engine.answer import Answer, End, Made
from edge.engine.engine import Engine
from edge.errors import ClosedError, OptionError, PoolFullError
from edge.lifecycle import compiled
from edge.results import Request
from edge.sampling import Sampler
from edge.session import common

_LOOK_S = 0.02  # how often a waiting reader checks whether its answer was cancelled


class _AtRestInTheEnd:
    """A context manager that keeps a thread from raising ClosedError while the interpreter ends: nobody is left to be
    told. A class, as it is entered for each token."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ClosedError):
            compiled.rest_if_ending()


_at_rest_in_the_end = _AtRestInTheEnd()


class _Here(threading.local):
    """A mark of each thread that, unlike its ident, is never given to another one."""

    def __init__(self) -> None:
        self.mark = object()


class Readers:
    """An engine and the threads that read its answers. `closed` is for good."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.closed = False
        self._lock = threading.RLock()  # re-entrant: a signal handler may close in a thread that is in here
        self._changed = threading.Condition(self._lock)
        self._here = _Here()
        # The thread that runs a step right now, and the answer for which it does.
        self._stepping: tuple[object, Answer] | None = None

    def add(self, request: Request, sampler: Sampler) -> Answer:
        """Have a request answered. Raises ClosedError, and what `Engine.add` raises."""
        with _at_rest_in_the_end, self._lock:
            self._check_open()
            return self.engine.add(request, sampler, paced=True)

    def next(self, answer: Answer, cancelled: Callable[[], bool]) -> Made | End:
        """The next token of an answer, or its end. Waits, and steps the engine if nobody else does.

        Raises ClosedError for an answer that had not begun when this was closed, OptionError within a step.
        """
        while True:
            with _at_rest_in_the_end, self._lock:
                found = self._look(answer, cancelled)
                if found is not None:
                    return found
                if self._steps_here():
                    raise OptionError("an answer cannot be read within a step of its own engine")
                if self._stepping is not None:
                    self._changed.wait(_LOOK_S)
                    continue
            self._step(answer)

    def _look(self, answer: Answer, cancelled: Callable[[], bool]) -> Made | End | None:
        if answer.read < len(answer.made):
            made = answer.made[answer.read]
            answer.read += 1
            return made
        if answer.end is None and cancelled():
            answer.aborted = True
            answer.finish("cancel")
        if answer.end is None and self.closed:
            if answer.cached is None:
                self._check_open()
            answer.finish("cancel")
        return answer.end

    def _step(self, answer: Answer) -> None:
        try:
            with self._lock:
                if self.closed or self._stepping is not None:
                    return
                self._stepping = (self._here.mark, answer)
            self.engine.step()
        finally:
            self.leave(answer)

    def leave(self, answer: Answer) -> None:
        """End the step that runs for an answer, if one does."""
        if self._stepping is not None and self._stepping[1] is answer:
            with self._lock:
                self._stepping = None
                if self.closed:
                    self.engine.runtime.close()
                self._changed.notify_all()

    def forget(self) -> None:
        """Give up the sequences of answers that have ended. Raises ClosedError."""
        with _at_rest_in_the_end, self._lock:
            self._wait()
            self._check_open()
            self.engine.forget()

    def save(self, path: Path, bundle: Bundle, tokens: Sequence[int], note: Any) -> int:
        """Write the sequence of ended answers that has most of some tokens; how many of them it has."""
        with _at_rest_in_the_end, self._lock:
            self._wait()
            self._check_open()
            self.engine.settle()
            session = self.engine.residents.find(tokens)
            if session is None:
                raise OptionError("there is no conversation to save: none of these tokens has been computed")
            saving.save(path, bundle, session, note)
            return common(session.tokens, tokens, len(tokens))

    def load(self, path: Path, bundle: Bundle) -> saving.Saved:
        """Read a sequence, for the next answer that begins like it."""
        with _at_rest_in_the_end, self._lock:
            self._wait()
            self._check_open()
            self.engine.settle()
            residents = self.engine.residents
            while True:
                try:
                    found = saving.load(path, bundle, self.engine.runtime, residents.pools)
                except PoolFullError:
                    if not residents.make_room():
                        raise
                else:
                    residents.keep(found.session)
                    return found

    def close(self) -> None:
        """Free the runtime, after the step that runs right now. Idempotent. An unfinished answer ends as if cancelled.

        Called from within a step (by a signal handler), it leaves the freeing to that step's end.
        """
        with self._lock:
            self.closed = True
            self._changed.notify_all()
            if self._steps_here():
                return
            self._wait()
            self.engine.runtime.close()

    def _steps_here(self) -> bool:
        return self._stepping is not None and self._stepping[0] is self._here.mark

    def _wait(self) -> None:
        if self._steps_here():
            raise OptionError("this cannot be done within a step of the engine")
        while self._stepping is not None:
            self._changed.wait()

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError("this pipeline is closed; load the model again")
