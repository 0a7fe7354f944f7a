"""One answer: the loop that makes its tokens, and the text that they spell.

`TokenRun` yields ids and timing; `Stream` adds text that never splits a character. Both may be given up at any time:
closed or simply dropped, they let the pipeline's next answer begin at once. So nothing that runs refers to them: the
generators know only the records that they fill in.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from edge.calls import ToolCall
from edge.loops import is_loop
from edge.options import GenerateOptions, Sampling
from edge.sampling import Sampler
from edge.sections import Delta, Splitter
from edge.stream import TextStream
from edge.turns import Turn

FinishReason = Literal["stop", "length", "loop", "cancel", "tool_calls"]


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """A generated token.

    at        the seconds since the call at which it was there
    dropped   tokens that the sliding policy has let go since the event before; on the first, for the prompt
    """

    id: int
    at: float
    dropped: int


@dataclass(frozen=True, slots=True)
class Stats:
    """Timing of one answer, in seconds and tokens a second. TTFT: call to first token. Rates are 0 where unmeasured."""

    ttft_s: float
    prefill_s: float
    decode_s: float
    prefill_tok_s: float
    decode_tok_s: float


@dataclass(frozen=True, slots=True)
class Result:
    """A finished answer.

    text            the answer; `reasoning` is what a reasoning model wrote between its think tags before it
    tool_calls      the calls of offered tools, which are no part of the text
    finish_reason   "stop": an end token or stop string; "tool_calls": an end token after calls; "length": max_tokens or
                    a full context; "loop": the same tokens for 256 tokens (see edge.loops); "cancel"
    cached_tokens   prompt tokens that an earlier call had left in the cache
    dropped_tokens  tokens of the conversation that the sliding policy has let go, up to the end of this answer
    sampling        how tokens were drawn: the options, and the model's own values for what they left open
    """

    text: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    stop: str | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    dropped_tokens: int
    seed: int
    sampling: Sampling
    kv_used: int
    kv_slots: int
    stats: Stats

    def to_message(self) -> dict[str, Any]:
        """The answer as a message, to go on with the conversation."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning:  # whether older reasoning stays in the prompt is for the template to say
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [call.to_message() for call in self.tool_calls]
        return message


@dataclass(frozen=True, slots=True)
class Request:
    """What an answer is made from: the prompt's ids, the end tokens, and how to sample and stop.

    `sampling` are the model's own values, `padded` the ids below `vocab_size` that have no token.
    """

    prompt: tuple[int, ...]
    eos: tuple[int, ...]
    vocab_size: int
    options: GenerateOptions
    cancel: threading.Event
    sampling: Mapping[str, Any]
    padded: tuple[int, ...] = ()


@dataclass(slots=True)
class Progress:
    """What is known of an answer so far (see `Result`); whole when its tokens have ended."""

    prompt_tokens: int
    seed: int
    sampling: Sampling
    tokens: list[int] = field(default_factory=list)
    finish_reason: FinishReason = "cancel"
    cached_tokens: int = 0
    dropped_tokens: int = 0
    kv_used: int = 0
    ttft_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    decode_steps: int = 0

    def stats(self) -> Stats:
        fresh = self.prompt_tokens - self.cached_tokens
        return Stats(
            ttft_s=self.ttft_s,
            prefill_s=self.prefill_s,
            decode_s=self.decode_s,
            prefill_tok_s=fresh / self.prefill_s if self.prefill_s else 0.0,
            decode_tok_s=self.decode_steps / self.decode_s if self.decode_s else 0.0,
        )


class TokenRun:
    """One answer as ids: an iterator of `TokenEvent`s. `progress` describes it."""

    def __init__(self, turn: Turn, request: Request) -> None:
        """`turn` lends the session for as long as the answer goes on. Raises OptionError for impossible options."""
        sampler = Sampler(request.options, request.vocab_size, model=request.sampling, padded=request.padded)
        self.progress = Progress(len(request.prompt), sampler.seed, sampler.sampling)
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
    start = time.perf_counter()
    try:
        if not turn.take(request.cancel.is_set):
            return
        try:
            yield from _generate(turn, request, sampler, progress, start)
        finally:
            progress.dropped_tokens = turn.session.dropped
            progress.kv_used = turn.session.cache.used
    finally:
        turn.leave()


def _generate(
    turn: Turn, request: Request, sampler: Sampler, progress: Progress, start: float
) -> Generator[TokenEvent, None, None]:
    options, session = request.options, turn.session
    sampler.prompt(request.prompt)
    progress.cached_tokens = session.align(request.prompt)
    pending = list(request.prompt[progress.cached_tokens :])
    eos = () if options.ignore_eos else request.eos
    first = True
    while True:
        began = time.perf_counter()
        logits = turn.feed(pending, request.cancel.is_set)
        if logits is None:
            return
        token = sampler.sample(logits)
        now = time.perf_counter()
        if first:
            progress.prefill_s, progress.ttft_s, first = now - began, now - start, False
        else:
            progress.decode_s += now - began
            progress.decode_steps += 1
        if token in eos:
            progress.finish_reason = "stop"
            return
        progress.tokens.append(token)
        sampler.accept(token)
        yield TokenEvent(token, now - start, session.newly_dropped)
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

    `deltas` gives a reasoning model's thoughts and the calls of tools as well, which the iterator leaves out.
    """

    def __init__(self, run: TokenRun, text: TextStream, splitter: Splitter, kv_slots: int) -> None:
        self.result: Result | None = None
        self._run = run
        self._text = text
        self._kv_slots = kv_slots
        self._parts: list[Delta] = []
        self._deltas = _deltas(run, text, splitter, self._parts)

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

    def close(self) -> None:
        """Give up the answer; `result` then holds what there is of it."""
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
