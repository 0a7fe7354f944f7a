"""One answer in the engine: its request, what it has made, and the sequence that it has for now."""

from __future__ import annotations

import time
from dataclasses import dataclass

from edge.results import FinishReason, Request, TokenEvent
from edge.sampling import Sampler
from edge.session import Session

AHEAD = 4  # tokens that an answer may be ahead of its reader


@dataclass(frozen=True, slots=True)
class Made:
    """A token, and the seconds that it took: for the first those of the prompt, for others those of the step."""

    event: TokenEvent
    took: float


@dataclass(frozen=True, slots=True)
class End:
    """How an answer ended; `error` is what its reader is to raise.

    took, at   as of a token, where an end token ended it; else 0
    The rest is as in `edge.results.Result`.
    """

    finish_reason: FinishReason
    dropped_tokens: int = 0
    kv_used: int = 0
    took: float = 0.0
    at: float = 0.0
    error: Exception | None = None


class Answer:
    """`made` is the one record of its tokens, and whole between any two lines of the engine; the rest follows from it.

    paced     somebody reads it, who says in `read` how many tokens he has: it is never more than AHEAD of that
    session   its sequence; None while it waits, or has lost it to others. What it then made is computed again
    cached    tokens of the prompt that needed no prefill; None until it has begun
    """

    def __init__(self, number: int, request: Request, sampler: Sampler, *, paced: bool = False) -> None:
        self.number, self.request, self.sampler, self.paced = number, request, sampler, paced
        self.began = time.perf_counter()
        self.made: list[Made] = []
        self.end: End | None = None
        self.read = 0
        self.aborted = False
        self.session: Session | None = None
        self.cached: int | None = None
        self.prefill_began = 0.0
        self.reported = 0  # of the dropped tokens
        self._history = list(request.prompt)
        self._tokens: list[int] = []
        sampler.prompt(request.prompt)

    @property
    def tokens(self) -> list[int]:
        """What was made so far."""
        if len(self._tokens) < len(self.made):
            self._tokens.extend(made.event.id for made in self.made[len(self._tokens) :])
        return self._tokens

    @property
    def history(self) -> list[int]:
        """The prompt and what was made so far."""
        known = len(self._history) - len(self.request.prompt)
        if known < len(self.made):
            self._history.extend(self.tokens[known:])
        return self._history

    @property
    def left(self) -> int:
        """How many tokens of the history the sequence has not seen."""
        assert self.session is not None
        return len(self.history) - len(self.session.tokens)

    @property
    def paused(self) -> bool:
        """Whether it is as far ahead of its reader as it may be."""
        return self.paced and len(self.made) - self.read >= AHEAD

    @property
    def cancelled(self) -> bool:
        return self.aborted or self.request.cancel.is_set()

    def finish(
        self, reason: FinishReason, *, took: float = 0.0, at: float = 0.0, error: Exception | None = None
    ) -> None:
        """End it, once."""
        if self.end is None:
            session = self.session
            dropped, used = (session.dropped, session.cache.used) if session else (0, 0)
            self.end = End(reason, dropped, used, took, at, error)

    def fail(self, error: Exception) -> None:
        self.finish("cancel", error=error)

    def restore_sampler(self) -> None:
        """Let the sampler stand where `made` says, after an interrupt."""
        self.sampler.truncate(len(self.made))
