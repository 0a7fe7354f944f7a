"""Streaming one answer to stdout, with Ctrl-C as a clean way to stop it, and the figures afterwards."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, fields
from types import FrameType
from typing import TYPE_CHECKING, Any

from edge.commands import terminal
from edge.commands.patience import Sign
from edge.commands.wrapping import Wrapper, columns
from edge.memory import peak_memory
from edge.options import GenerateOptions, Sampling

if TYPE_CHECKING:
    from edge.pipeline import Pipeline, Tools
    from edge.results import Result
    from edge.sections import Delta

INTERRUPTED = 130
Request = str | Sequence[Mapping[str, Any]]


def stream(
    pipeline: Pipeline,
    request: Request,
    options: GenerateOptions,
    *,
    raw: bool = False,
    tools: Tools | None = None,
    page: Page | Lines | None,
) -> Result:
    """Generate an answer; its pieces go to `page`. Ctrl-C ends it early: finish_reason is then "cancel".

    Ctrl-C while the prompt is still being made raises KeyboardInterrupt.
    """
    cancel = threading.Event()
    with (
        closing(pipeline.stream(request, options, raw=raw, tools=tools, cancel=cancel)) as answer,
        _interrupt_sets(cancel),
        Sign("reading the prompt" if page else "answering") as sign,
    ):
        for delta in answer.deltas():
            if page:
                sign.stop()
                page.show(delta)
    result = answer.result
    assert result is not None  # the stream has ended
    if page:
        page.end(bare=bool(result.tool_calls))
    return result


class Lines:
    """The pieces of an answer as JSON, one object a line: {"text": ...}, {"reasoning": ...} or {"tool_call": ...}."""

    def show(self, delta: Delta) -> None:
        if delta.call:
            terminal.print_json({"tool_call": asdict(delta.call)})
        else:
            terminal.print_json({"reasoning" if delta.reasoning else "text": delta.text})

    def end(self, *, bare: bool) -> None:
        """The result, which the caller prints, is the last line."""


class Page:
    """An answer for a person. Reasoning goes to stderr, dimmed on a terminal; so does a line for each call of a tool.

    On a terminal, control characters that the model writes are spelled out and words stay whole; a pipe gets the answer
    as it is.
    """

    def __init__(self) -> None:
        self._clean = terminal.visible if sys.stdout.isatty() else str
        self._answer = Wrapper(lambda: columns(sys.stdout))
        self._reasoning = Wrapper(lambda: columns(sys.stderr))
        self._last = ""  # of the answer, since the latest call
        self._thinking = False

    def show(self, delta: Delta) -> None:
        if delta.reasoning:
            terminal.think(self._reasoning.push(terminal.visible(delta.text)))
        elif self._thinking:
            self._end_reasoning("\n")
        if delta.call:
            self._end_line()
            terminal.note(f"tool call: {delta.call.name} {delta.call.arguments}")
        elif not delta.reasoning:
            terminal.say(self._answer.push(self._clean(delta.text)), end="", flush=True)
            self._last = delta.text
        self._thinking = delta.reasoning

    def end(self, *, bare: bool) -> None:
        """End the last line. `bare`: an answer that is empty has no line at all."""
        if self._thinking:
            self._end_reasoning("")
        if not self._last and not bare:
            terminal.say(flush=True)
        self._end_line()

    def _end_reasoning(self, after: str) -> None:
        terminal.think(self._reasoning.finish())
        terminal.note(after)

    def _end_line(self) -> None:
        if self._last:
            terminal.say(self._answer.finish(), end="" if self._last.endswith("\n") else "\n", flush=True)
        self._last = ""
        self._answer = Wrapper(lambda: columns(sys.stdout))


def report(result: Result, options: GenerateOptions, *, stats: bool, when_full: str, pipeline: Pipeline) -> None:
    """Say on stderr what the reader must know about an answer (dropped, cut), and its figures if asked for.

    `when_full` says what can be done about a context that an answer has filled.
    """
    if result.dropped_turns:
        turns = "turn was" if result.dropped_turns == 1 else f"{result.dropped_turns} turns were"
        terminal.note(f"the context is full: the oldest {turns} not sent")
    if result.dropped_tokens:
        terminal.note(f"the context is full: {result.policy} has dropped {result.dropped_tokens} tokens so far")
    if result.finish_reason == "length" and result.completion_tokens != options.max_tokens:
        terminal.note(f"the answer was cut: the context is full; {when_full}")
    if result.finish_reason == "loop":
        terminal.note("the answer was ended: it repeated itself; --temperature or --repetition-penalty may help")
    if stats:
        terminal.note(describe(result))
        for note in pipeline.runtime.notes:
            terminal.note(f"{pipeline.runtime.name} ({pipeline.runtime.device}): {note}")


def describe(result: Result) -> str:
    """The figures of an answer, on one line."""
    figures = result.stats
    peak = peak_memory()
    parts = [
        f"TTFT {figures.ttft_s * 1000:.0f} ms",
        f"prefill {figures.prefill_tok_s:.1f} tok/s ({result.prompt_tokens} tokens, {result.cached_tokens} cached)",
        f"decode {figures.decode_tok_s:.1f} tok/s ({result.completion_tokens} tokens)",
        f"peak memory {'unknown' if peak is None else terminal.megabytes(peak)}",
        f"KV {result.kv_used}/{result.kv_slots}",
        f"dropped {result.dropped_tokens} ({result.policy})",
        f"{describe_sampling(result.sampling)}, seed {result.seed}",
    ]
    return ", ".join(parts)


def describe_sampling(sampling: Sampling) -> str:
    """What of it is in force: `temperature 0.7, top_p 0.8`, or `greedy`."""
    neutral = Sampling()
    names = ("repetition_penalty",) if sampling.temperature == 0 else [item.name for item in fields(sampling)]
    told = {name: getattr(sampling, name) for name in names}
    said = [f"{name} {value:g}" for name, value in told.items() if value != getattr(neutral, name)]
    return ", ".join([*(["greedy"] if sampling.temperature == 0 else []), *said])


@contextmanager
def _interrupt_sets(cancel: threading.Event) -> Iterator[None]:
    """The first Ctrl-C sets the event; a second one raises KeyboardInterrupt, should the first not be heard.

    An exception at a random place could leave the KV bookkeeping and the backend in disagreement.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        if cancel.is_set():
            signal.default_int_handler(number, frame)
        cancel.set()

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
