"""Generation in three layers, each adding one thing: `tokens` (ids and timing), `stream` (text), `complete` (a result).

One loop serves prefill and decode. A pipeline runs one answer at a time; a second thread waits for its turn.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from edge.bundle import TEMPLATE, TOKENIZER, Bundle, open_bundle
from edge.chat import ChatTemplate
from edge.errors import BundleError, ClosedError, OptionError
from edge.kv import plan_layout
from edge.options import GenerateOptions, RuntimeOptions
from edge.runtime import Runtime, open_runtime
from edge.sampling import Sampler
from edge.session import Session
from edge.stream import TextStream
from edge.tokenizer import Tokenizer

DEFAULT_CONTEXT = 4096
Messages = Sequence[Mapping[str, Any]]
FinishReason = Literal["stop", "length", "cancel"]


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """A generated token: its id, and the seconds since the call at which it was there."""

    id: int
    at: float


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

    finish_reason   "stop": an end token or stop string; "length": max_tokens or a full context; "cancel"
    cached_tokens   prompt tokens that an earlier call had left in the cache
    dropped_tokens  tokens of the conversation that the sliding policy has let go, up to the end of this answer
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    stop: str | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    dropped_tokens: int
    seed: int
    kv_used: int
    kv_slots: int
    stats: Stats


class TokenRun:
    """One answer as ids: iterate for `TokenEvent`s; afterwards (or after `close`) the attributes describe it."""

    def __init__(
        self, pipeline: Pipeline, prompt: Sequence[int], options: GenerateOptions, cancel: threading.Event
    ) -> None:
        self.prompt_tokens = len(prompt)
        self.cached_tokens = 0
        self.dropped_tokens = 0
        self.finish_reason: FinishReason = "cancel"
        self.tokens: list[int] = []
        self.prefill_s = self.decode_s = self.ttft_s = 0.0
        self.kv_used = 0
        self._cancel = cancel
        self._sampler = Sampler(options, pipeline.bundle.spec.vocab_size)
        self.seed = self._sampler.seed
        self._events = self._run(pipeline, list(prompt), options)

    def __iter__(self) -> Iterator[TokenEvent]:
        return self._events

    def close(self) -> None:
        self._events.close()

    def _run(
        self, pipeline: Pipeline, prompt: list[int], options: GenerateOptions
    ) -> Generator[TokenEvent, None, None]:
        start = time.perf_counter()
        with pipeline._turn() as session:
            try:
                yield from self._generate(pipeline, session, prompt, options, start)
            finally:
                self.dropped_tokens = session.dropped
                self.kv_used = session.cache.used

    def _generate(
        self, pipeline: Pipeline, session: Session, prompt: list[int], options: GenerateOptions, start: float
    ) -> Iterator[TokenEvent]:
        first = True
        self._sampler.prompt(prompt)
        self.cached_tokens = session.align(prompt)
        pending = prompt[self.cached_tokens :]
        eos = () if options.ignore_eos else pipeline.bundle.manifest.tokenizer.eos
        while True:
            began = time.perf_counter()
            logits = session.feed(pending, cancelled=self._cancel.is_set)
            if logits is None:
                return
            token = self._sampler.sample(logits)
            now = time.perf_counter()
            if first:
                self.prefill_s, self.ttft_s, first = now - began, now - start, False
            else:
                self.decode_s += now - began
            if token in eos:
                self.finish_reason = "stop"
                return
            self.tokens.append(token)
            self._sampler.accept(token)
            yield TokenEvent(token, now - start)
            full = session.cache.room(1) == 0
            if full or len(self.tokens) == options.max_tokens:
                self.finish_reason = "length"
                return
            pending = [token]

    def stats(self) -> Stats:
        fresh = self.prompt_tokens - self.cached_tokens
        steps = len(self.tokens) - 1 + (self.finish_reason == "stop")
        return Stats(
            ttft_s=self.ttft_s,
            prefill_s=self.prefill_s,
            decode_s=self.decode_s,
            prefill_tok_s=fresh / self.prefill_s if self.prefill_s else 0.0,
            decode_tok_s=steps / self.decode_s if self.decode_s else 0.0,
        )


class Stream:
    """One answer as text: iterate for pieces that never split a character; then `result` is there."""

    def __init__(self, pipeline: Pipeline, run: TokenRun, options: GenerateOptions) -> None:
        self.result: Result | None = None
        self._pipeline = pipeline
        self._run = run
        self._text = TextStream(pipeline.tokenizer, options.stop)
        self._pieces = self._deltas()

    def __iter__(self) -> Iterator[str]:
        return self._pieces

    def __next__(self) -> str:
        return next(self._pieces)

    def close(self) -> None:
        """Give up the answer; `result` then holds what there is of it."""
        self._pieces.close()

    def _deltas(self) -> Generator[str, None, None]:
        parts: list[str] = []
        run = self._run
        try:
            for event in run:
                piece = self._text.push(event.id)
                if piece:
                    parts.append(piece)
                    yield piece
                if self._text.stopped is not None:
                    run.close()
                    break
            piece = self._text.finish()
            if self._text.stopped is not None:  # a stop string may show only when held back bytes are let go
                run.finish_reason = "stop"
            if piece:
                parts.append(piece)
                yield piece
        finally:
            run.close()
            self.result = self._finish("".join(parts))

    def _finish(self, text: str) -> Result:
        run = self._run
        return Result(
            text=text,
            tokens=tuple(run.tokens),
            finish_reason=run.finish_reason,
            stop=self._text.stopped,
            prompt_tokens=run.prompt_tokens,
            completion_tokens=len(run.tokens),
            cached_tokens=run.cached_tokens,
            dropped_tokens=run.dropped_tokens,
            seed=run.seed,
            kv_used=run.kv_used,
            kv_slots=sum(ring.slots for ring in self._pipeline.runtime.layout.rings),
            stats=run.stats(),
        )


class Pipeline:
    """An opened model: bundle, runtime, tokenizer and one conversation's cache. A context manager that frees it all."""

    def __init__(self, bundle: Bundle, options: RuntimeOptions | None = None) -> None:
        """Raises BundleError, DeviceError or OptionError; nothing stays open then."""
        options = options or RuntimeOptions()
        info = bundle.manifest.tokenizer
        text = bundle.read_text(TOKENIZER)
        if text is None:
            raise BundleError(f"{bundle.path}: holds no {TOKENIZER}")
        context = options.context or min(bundle.spec.context, DEFAULT_CONTEXT)
        if context > bundle.spec.context:
            raise OptionError(
                f"a context of {context} was asked for and the model was trained for {bundle.spec.context}"
            )
        layout = plan_layout(
            bundle.spec, context, chunk=options.chunk, sinks=options.sinks, sequences=options.sequences
        )
        self.bundle = bundle
        self.options = options
        self.tokenizer = Tokenizer(text, bos=info.bos, eos=info.eos, add_bos=info.add_bos, special=info.special)
        template = bundle.read_text(TEMPLATE)
        self.template = ChatTemplate(template, info.special) if template is not None else None
        self.runtime: Runtime = open_runtime(bundle, layout, options)
        self._session = Session(self.runtime, options.policy)
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._closed = False

    def encode(self, prompt: Messages | str, *, raw: bool = False) -> list[int]:
        """The ids of a prompt: messages or one user message through the template, or with `raw` the text itself."""
        if raw:
            if not isinstance(prompt, str):
                raise OptionError("a raw prompt is a text; messages need the model's template")
            return self.tokenizer.encode_prompt(prompt)
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        if self.template is None:
            raise OptionError(f"{self.bundle.manifest.name} has no chat template; use it raw, as a text to continue")
        return self.template.encode(messages, self.tokenizer)

    def tokens(
        self, prompt: Sequence[int], options: GenerateOptions | None = None, *, cancel: threading.Event | None = None
    ) -> TokenRun:
        """Generate ids after a prompt of ids. Raises OptionError for an empty prompt or ids outside the vocabulary."""
        vocab = self.bundle.spec.vocab_size
        if not prompt:
            raise OptionError("the prompt is empty; at least one token is needed")
        if not all(0 <= token < vocab for token in prompt):
            raise OptionError(f"a prompt id is outside the vocabulary of {vocab}")
        return TokenRun(self, prompt, options or GenerateOptions(), cancel or threading.Event())

    def stream(
        self,
        prompt: Messages | str,
        options: GenerateOptions | None = None,
        *,
        raw: bool = False,
        cancel: threading.Event | None = None,
    ) -> Stream:
        """Generate text after messages, a user message, or with `raw` a text to continue."""
        options = options or GenerateOptions()
        run = self.tokens(self.encode(prompt, raw=raw), options, cancel=cancel)
        return Stream(self, run, options)

    def complete(
        self,
        prompt: Messages | str,
        options: GenerateOptions | None = None,
        *,
        raw: bool = False,
        cancel: threading.Event | None = None,
    ) -> Result:
        """Like `stream`, all at once."""
        stream = self.stream(prompt, options, raw=raw, cancel=cancel)
        for _ in stream:
            pass
        assert stream.result is not None
        return stream.result

    def reset(self) -> None:
        """Forget the conversation: the next prompt is prefilled whole."""
        with self._turn() as session:
            session.reset()

    def close(self) -> None:
        """Free everything, after an answer that is running in another thread has ended. Idempotent."""
        if self._closed:
            return
        self._refuse_own_turn()
        with self._lock:
            self._closed = True
            self.runtime.close()

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextlib.contextmanager
    def _turn(self) -> Iterator[Session]:
        """The session, for one answer. Waits for another thread's answer; refuses to wait for this thread's own."""
        self._refuse_own_turn()
        with self._lock:
            if self._closed:
                raise ClosedError("this pipeline is closed; load the model again")
            self._owner = threading.get_ident()
            try:
                yield self._session
            finally:
                self._owner = None

    def _refuse_own_turn(self) -> None:
        if self._owner == threading.get_ident():
            raise OptionError("an answer of this pipeline is still being read here; finish it or close it first")


def load(name_or_path: str | Path, options: RuntimeOptions | None = None) -> Pipeline:
    """Open a model by its name in the store, or a bundle by its path.

    Raises NotFoundError for neither, BundleError for a damaged bundle, DeviceError where no backend can run it.
    """
    from edge.store import resolve

    return Pipeline(open_bundle(resolve(name_or_path)), options)
