"""One answer as its reader sees it: the tokens that the engine makes, and the text that they spell.

`TokenRun` yields ids and timing; `Stream` adds text that never splits a character. Both may be given up at any time,
closed or simply dropped, and both may stay unread: neither holds up another answer of the pipeline. The engine and the
generators know only the records that they fill in, so that nothing that runs refers to them.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import AsyncIterator, Generator, Iterator

from edge.awaiting import Steps
from edge.engine import Answer, End, Readers
from edge.kv import KvLayout
from edge.results import Progress, Request, Result, TokenEvent
from edge.sampling import Sampler
from edge.sections import Delta, Splitter
from edge.stream import TextStream


class TokenRun:
    """One answer as ids: an iterator of `TokenEvent`s. `progress` describes what has been read of it."""

    def __init__(self, readers: Readers, request: Request) -> None:
        """Raises OptionError for impossible options. The engine hears of it when it is first read."""
        self._sampler = Sampler(
            request.options,
            request.vocab_size,
            model=request.sampling,
            padded=request.padded,
            core=readers.engine.runtime.capabilities.sampling,
        )
        self.progress = Progress(len(request.prompt), self._sampler.seed, self._sampler.sampling)
        if request.options.top_logprobs is not None:
            self.progress.logprobs = []
        self._readers = readers
        self._request = request
        self._answer: Answer | None = None
        self._over = False

    def __iter__(self) -> TokenRun:
        return self

    def __next__(self) -> TokenEvent:
        if self._over:
            raise StopIteration
        try:
            return self._advance()
        except BaseException:  # the end or an error; an interrupt may have come before the step was left
            self._over = True
            if self._answer is not None:
                self._readers.leave(self._answer)
            self._settle()
            raise

    def _advance(self) -> TokenEvent:
        progress = self.progress
        if self._answer is None:
            if self._cancelled():
                raise StopIteration
            self._answer = answer = self._readers.add(self._request, self._sampler)
            weakref.finalize(self, setattr, answer, "aborted", True).atexit = False
        found = self._readers.next(self._answer, self._cancelled)
        if isinstance(found, End):
            if found.took:
                self._time(found.took, found.at)
            progress.finish_reason = found.finish_reason
            if found.error is not None:
                raise found.error
            raise StopIteration
        event = found.event
        self._time(found.took, event.at)
        progress.tokens.append(event.id)
        if event.logprob is not None and progress.logprobs is not None:
            progress.logprobs.append(event.logprob)
        return event

    def _time(self, took: float, at: float) -> None:
        progress = self.progress
        if progress.tokens:
            progress.decode_s += took
            progress.decode_steps += 1
        else:
            progress.prefill_s, progress.ttft_s = took, at

    def _cancelled(self) -> bool:
        return self._request.cancel.is_set() or self.progress.given_up

    def _settle(self) -> None:
        """Give the answer up, if it has not ended, and note what it had."""
        answer = self._answer
        if answer is not None:
            answer.aborted = True
            answer.finish("cancel")
            assert answer.end is not None
            self.progress.dropped_tokens, self.progress.kv_used = answer.end.dropped_tokens, answer.end.kv_used
            self.progress.cached_tokens = answer.cached or 0

    def close(self) -> None:
        """Give up the answer. Idempotent; iterating then ends."""
        self._over = True
        self._settle()


class Stream:
    """One answer as text: an iterator of pieces that never split a character. Afterwards `result` is there.

    `deltas` gives a reasoning model's thoughts and the calls of tools as well, which the iterator leaves out. In
    asyncio, `async for` and `adeltas` give the same, computed in a thread; a task that is cancelled ends its answer.
    """

    def __init__(self, run: TokenRun, text: TextStream, splitter: Splitter, layout: KvLayout) -> None:
        self.result: Result | None = None
        self._run = run
        self._text = text
        self._layout = layout
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
            dropped_turns=progress.dropped_turns,
            seed=progress.seed,
            sampling=progress.sampling,
            kv_used=progress.kv_used,
            kv_slots=sum(ring.slots for ring in self._layout.rings),
            policy=self._layout.policy,
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
