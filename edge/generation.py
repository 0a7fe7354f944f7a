"""One answer: the loop that makes its tokens, and the text that they spell.

`TokenRun` yields ids and timing; `Stream` adds text that never splits a character. Both may be given up at any time:
closed or simply dropped, they let the pipeline's next answer begin at once. So nothing that runs refers to them: the
generators know only the records that they fill in.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator

from edge.awaiting import Steps
from edge.loops import is_loop
from edge.results import Progress, Request, Result, TokenEvent
from edge.sampling import Sampler
from edge.sections import Delta, Splitter
from edge.stream import TextStream
from edge.turns import Turn


class TokenRun:
    """One answer as ids: an iterator of `TokenEvent`s. `progress` describes it."""

    def __init__(self, turn: Turn, request: Request) -> None:
        """`turn` lends the session for as long as the answer goes on. Raises OptionError for impossible options."""
        sampler = Sampler(request.options, request.vocab_size, model=request.sampling, padded=request.padded)
        self.progress = Progress(len(request.prompt), sampler.seed, sampler.sampling)
        if request.options.top_logprobs is not None:
            self.progress.logprobs = []
        self._turn = turn
        self._events = _run(turn, request, sampler, self.progress)

    def __iter__(self) -> TokenRun:
        return self

    def __next__(self) -> TokenEvent:
        try:
            return next(self._events)
        except BaseException:  # the end or an error; an interrupt may have kept the loop itself from leaving
            self._turn.leave()
            raise

    def close(self) -> None:
        """Give up the answer. Idempotent; iterating then ends."""
        try:
            self._events.close()
        finally:
            self._turn.leave()


def _run(turn: Turn, request: Request, sampler: Sampler, progress: Progress) -> Generator[TokenEvent, None, None]:
    progress.began = time.perf_counter()

    def cancelled() -> bool:
        return request.cancel.is_set() or progress.given_up

    try:
        if not turn.take(cancelled):
            return
        try:
            yield from _generate(turn, request, sampler, progress, cancelled)
        finally:
            progress.dropped_tokens = turn.session.dropped
            progress.kv_used = turn.session.cache.used
    finally:
        turn.leave()


def _generate(
    turn: Turn, request: Request, sampler: Sampler, progress: Progress, cancelled: Callable[[], bool]
) -> Generator[TokenEvent, None, None]:
    options, session = request.options, turn.session
    sampler.prompt(request.prompt)
    progress.cached_tokens = session.align(request.prompt)
    pending = list(request.prompt[progress.cached_tokens :])
    eos = () if options.ignore_eos else request.eos
    first = True
    while True:
        began = time.perf_counter()
        logits = turn.feed(pending, cancelled)
        if logits is None:
            return
        token = sampler.sample(logits)
        now = time.perf_counter()
        if first:
            progress.prefill_s, progress.ttft_s, first = now - began, now - progress.began, False
        else:
            progress.decode_s += now - began
            progress.decode_steps += 1
        if token in eos:
            progress.finish_reason = "stop"
            return
        logprob = None
        if progress.logprobs is not None:
            logprob = sampler.logprob(logits, token)
            progress.logprobs.append(logprob)
        progress.tokens.append(token)
        sampler.accept(token)
        yield TokenEvent(token, now - progress.began, session.newly_dropped, logprob)
        full = session.cache.room(1) == 0
        if full or len(progress.tokens) == options.max_tokens:
            progress.finish_reason = "length"
            return
        if not options.ignore_eos and is_loop(progress.tokens):
            progress.finish_reason = "loop"
            return
        pending = [token]


class Stream:
    """One answer as text: an iterator of pieces that never split a character. Afterwards `result` is there.

    `deltas` gives a reasoning model's thoughts and the calls of tools as well, which the iterator leaves out. In
    asyncio, `async for` and `adeltas` give the same, computed in a thread; a task that is cancelled ends its answer.
    """

    def __init__(self, run: TokenRun, text: TextStream, splitter: Splitter, kv_slots: int) -> None:
        self.result: Result | None = None
        self._run = run
        self._text = text
        self._kv_slots = kv_slots
        self._parts: list[Delta] = []
        self._deltas = _deltas(run, text, splitter, self._parts)
        self._steps = Steps(self._give_up)

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> str:
        while True:
            delta = self._advance()
            if not delta.reasoning and not delta.call:
                return delta.text

    def deltas(self) -> Iterator[Delta]:
        """The pieces from here on, reasoning and calls among them, each marked as what it is."""
        with contextlib.suppress(StopIteration):
            while True:
                yield self._advance()

    def _advance(self) -> Delta:
        try:
            return next(self._deltas)
        except BaseException:  # the end or an error: there will be no more
            self._finish()
            raise

    async def __aiter__(self) -> AsyncIterator[str]:
        async for delta in self.adeltas():
            if not delta.reasoning and not delta.call:
                yield delta.text

    async def adeltas(self) -> AsyncIterator[Delta]:
        """`deltas` for asyncio. Ends the answer when the iteration is given up."""
        try:
            while delta := await self._steps.call(self._advance_or_end):
                yield delta
        finally:
            self.close()

    def _advance_or_end(self) -> Delta | None:
        try:
            return self._advance()
        except StopIteration:
            return None

    def _give_up(self) -> None:
        self._run.progress.given_up = True

    def close(self) -> None:
        """Give up the answer; `result` then holds what there is of it."""
        self._steps.close()
        self._deltas.close()
        self._run.close()
        self._finish()

    def _finish(self) -> None:
        progress = self._run.progress
        calls = tuple(part.call for part in self._parts if part.call)
        called = calls and progress.finish_reason == "stop" and self._text.stopped is None
        self.result = self.result or Result(
            text="".join(part.text for part in self._parts if not part.reasoning),
            reasoning="".join(part.text for part in self._parts if part.reasoning),
            tool_calls=calls,
            tokens=tuple(progress.tokens),
            finish_reason="tool_calls" if called else progress.finish_reason,
            stop=self._text.stopped,
            prompt_tokens=progress.prompt_tokens,
            completion_tokens=len(progress.tokens),
            cached_tokens=progress.cached_tokens,
            dropped_tokens=progress.dropped_tokens,
            seed=progress.seed,
            sampling=progress.sampling,
            kv_used=progress.kv_used,
            kv_slots=self._kv_slots,
            stats=progress.stats(),
            logprobs=None if progress.logprobs is None else tuple(progress.logprobs),
        )


def _deltas(run: TokenRun, text: TextStream, splitter: Splitter, parts: list[Delta]) -> Generator[Delta, None, None]:
    for piece in _pieces(run, text):
        for delta in splitter.push(piece):
            parts.append(delta)
            yield delta
    for delta in splitter.finish(text.stopped):
        parts.append(delta)
        yield delta


def _pieces(run: TokenRun, text: TextStream) -> Generator[str, None, None]:
    try:
        for event in run:
            if piece := text.push(event.id):
                yield piece
            if text.stopped is not None:
                break
        piece = text.finish()
        run.close()
        if text.stopped is not None:  # a stop string may show only when held back bytes are let go
            run.progress.finish_reason = "stop"
        if piece:
            yield piece
    finally:
        run.close()
