"""Streaming one answer to stdout, with Ctrl-C as a clean way to stop it, and the figures afterwards."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from edge.commands import terminal
from edge.memory import peak_memory
from edge.options import GenerateOptions

if TYPE_CHECKING:
    from edge.generation import Result
    from edge.pipeline import Pipeline, Tools

INTERRUPTED = 130
Request = str | Sequence[Mapping[str, Any]]


def stream(
    pipeline: Pipeline,
    request: Request,
    options: GenerateOptions,
    *,
    raw: bool = False,
    tools: Tools | None = None,
    show: bool = True,
) -> Result:
    """Generate an answer, printed as it grows if `show`. Ctrl-C ends it early: finish_reason is then "cancel".

    Reasoning goes to stderr, dimmed on a terminal; so does a line for each call of a tool. On a terminal, control
    characters that the model writes are spelled out; a pipe gets the answer as it is.
    """
    clean = terminal.visible if sys.stdout.isatty() else str
    last = ""
    thinking = False
    with (
        _cancelled_by_interrupt() as cancel,
        closing(pipeline.stream(request, options, raw=raw, tools=tools, cancel=cancel)) as answer,
    ):
        for delta in answer.deltas():
            if not show:
                continue
            if delta.reasoning:
                terminal.think(delta.text)
            elif thinking:
                terminal.note("\n")
            if delta.call:
                if last and not last.endswith("\n"):
                    terminal.say(flush=True)
                last = ""
                terminal.note(f"tool call: {delta.call.name} {delta.call.arguments}")
            elif not delta.reasoning:
                terminal.say(clean(delta.text), end="", flush=True)
                last = delta.text
            thinking = delta.reasoning
    result = answer.result
    assert result is not None  # the stream has ended
    if thinking:
        terminal.note("")
    if show and not last.endswith("\n") and (last or not result.tool_calls):  # calls alone leave stdout empty
        terminal.say(flush=True)
    return result


def report(result: Result, options: GenerateOptions, *, stats: bool) -> None:
    """Say on stderr what the reader must know about an answer (dropped, cut), and its figures if asked for."""
    if result.dropped_tokens:
        terminal.note(f"the context is full: the oldest {result.dropped_tokens} tokens have been dropped so far")
    if result.finish_reason == "length" and result.completion_tokens != options.max_tokens:
        terminal.note("the answer was cut: the context is full; see --context and --policy")
    if result.finish_reason == "loop":
        terminal.note("the answer was ended: it repeated itself; --temperature or --repetition-penalty may help")
    if stats:
        terminal.note(describe(result))


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
        f"dropped {result.dropped_tokens}",
        f"seed {result.seed}",
    ]
    return ", ".join(parts)


@contextmanager
def _cancelled_by_interrupt() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets; a second one raises KeyboardInterrupt, should the first not be heard.

    An exception at a random place could leave the KV bookkeeping and the backend in disagreement.
    """
    cancel = threading.Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if cancel.is_set():
            signal.default_int_handler(number, frame)
        cancel.set()

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield cancel
    finally:
        signal.signal(signal.SIGINT, before)
