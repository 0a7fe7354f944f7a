"""Who may go when: cancelling, faults, one answer at a time, closing; and loading what is no bundle."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import pytest

from edge import turns
from edge.bundle import open_bundle
from edge.errors import BundleError, ClosedError, NotFoundError, NumericsError, OptionError
from edge.generation import Stream
from edge.kv import KvLayout
from edge.options import GenerateOptions, RuntimeOptions
from edge.pipeline import Pipeline, load
from runtimes.scripted import ScriptedRuntime, write_bundle
from tests.edge.scripted import OpenScripted, runtime, with_file, without

T = TypeVar("T")


def in_thread(work: Callable[[], T]) -> Future[T]:
    """What a thread of its own makes of some work; one that hangs does not keep the tests from ending."""
    found: Future[T] = Future()

    def run() -> None:
        try:
            found.set_result(work())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return found


# --- cancelling ---------------------------------------------------------------------------------------------------


def test_cancel_from_another_thread_stops_within_a_step(opened: OpenScripted) -> None:
    pipeline = opened("x" * 2000, bundle_delay_s=0.002)
    cancel = threading.Event()
    stream = pipeline.stream("hi", cancel=cancel)
    assert [next(stream) for _ in range(3)] == ["x"] * 3
    setter = threading.Thread(target=cancel.set)
    setter.start()
    setter.join()
    assert list(stream) == []
    assert stream.result is not None
    assert (stream.result.text, stream.result.finish_reason) == ("xxx", "cancel")
    assert runtime(pipeline).forwards == 3
    assert pipeline.complete("hi", GenerateOptions(max_tokens=2)).text == "xx"


def test_cancel_during_prefill_keeps_the_chunks_that_are_done(opened: OpenScripted) -> None:
    pipeline = opened("ok", chunk=16)
    cancel = threading.Event()
    forward = runtime(pipeline).forward

    def cancelling(segments: list[Any], want: Any = "last") -> list[Any]:
        if runtime(pipeline).forwards == 1:
            cancel.set()
        return forward(segments, want)

    runtime(pipeline).forward = cancelling  # type: ignore[method-assign, assignment]
    result = pipeline.complete("y" * 100, cancel=cancel)
    assert (result.text, result.tokens, result.finish_reason) == ("", (), "cancel")
    # 103 tokens go in seven even parts: 15 and 15 are done.
    assert (result.prompt_tokens, result.kv_used, runtime(pipeline).forwards) == (103, 30, 2)
    assert (result.stats.ttft_s, result.stats.prefill_tok_s, result.stats.decode_tok_s) == (0.0, 0.0, 0.0)
    again = pipeline.complete("y" * 100)
    assert (again.text, again.cached_tokens) == ("ok", 30)


def test_cancelled_before_it_began(opened: OpenScripted) -> None:
    pipeline = opened()
    cancel = threading.Event()
    cancel.set()
    assert pipeline.complete("hi", cancel=cancel).finish_reason == "cancel"
    assert runtime(pipeline).forwards == 0


# --- faults -------------------------------------------------------------------------------------------------------


def test_o3_logits_that_are_nan_raise_and_the_pipeline_goes_on(opened: OpenScripted) -> None:
    pipeline = opened("abcdef", "ok", bundle_fail_at=3)
    stream = pipeline.stream("hi")
    with pytest.raises(NumericsError, match="not finite"):
        list(stream)
    assert stream.result is not None
    assert (stream.result.text, stream.result.tokens) == ("abc", tuple(b"abc"))
    runtime(pipeline)._fail_at = None
    assert pipeline.complete("hi").text == "ok"


def test_a_pipeline_that_cannot_be_opened_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[ScriptedRuntime] = []

    def record(self: ScriptedRuntime) -> None:
        closed.append(self)

    monkeypatch.setattr(ScriptedRuntime, "close", record)
    bundle = write_bundle(tmp_path / "x.dsedge", ["a"], context=128)
    with pytest.raises(OptionError, match="sinks are kept only by the sliding policy"):
        Pipeline(bundle, RuntimeOptions(runtime="scripted", sinks=2))
    assert len(closed) == 1
    with pytest.raises(OptionError, match="a context of 129 was asked for and the model was trained for 128"):
        Pipeline(bundle, RuntimeOptions(runtime="scripted", context=129))
    with pytest.raises(OptionError, match="unknown runtime 'nope'; known are auto, native, onnx, scripted"):
        Pipeline(bundle, RuntimeOptions(runtime="nope"))


def test_the_default_context_is_the_models_own_up_to_4096(opened: OpenScripted) -> None:
    layouts: list[KvLayout] = [opened(bundle_context=n).runtime.layout for n in (100, 8192)]
    assert [layout.context for layout in layouts] == [100, 4096]


# --- one answer at a time -----------------------------------------------------------------------------------------


def test_a_second_answer_in_the_same_thread_is_refused_while_one_is_read(opened: OpenScripted) -> None:
    pipeline = opened("one", "two")
    first = pipeline.stream("a")
    assert next(first) == "o"
    with pytest.raises(OptionError, match="still being read here; finish it or close it first"):
        pipeline.complete("b")
    with pytest.raises(OptionError, match="still being read here"):
        pipeline.reset()
    assert list(first) == ["n", "e"]
    assert pipeline.complete("b").text == "two"


def test_another_thread_waits_for_its_turn(opened: OpenScripted) -> None:
    pipeline = opened("one", "two")
    first = pipeline.stream("a")
    next(first)
    started, found = threading.Event(), []

    def work() -> None:
        started.set()
        found.append(pipeline.complete("b").text)

    thread = threading.Thread(target=work)
    thread.start()
    started.wait()
    thread.join(0.05)
    assert (found, thread.is_alive()) == ([], True)
    assert "".join(first) == "ne"
    thread.join(5)
    assert found == ["two"]


def test_a_cancelled_answer_does_not_wait_for_its_turn(opened: OpenScripted) -> None:
    pipeline = opened("one", "two")
    first = pipeline.stream("a")
    next(first)
    cancel = threading.Event()
    waiting = in_thread(lambda: pipeline.complete("b", cancel=cancel).finish_reason)
    with pytest.raises(TimeoutError):
        waiting.result(0.05)
    cancel.set()
    assert waiting.result(5) == "cancel"
    assert in_thread(lambda: pipeline.complete("b", cancel=cancel).finish_reason).result(5) == "cancel"
    assert "".join(first) == "ne"


def test_an_answer_begun_in_one_thread_is_read_on_in_another(opened: OpenScripted) -> None:
    """Who reads is who counts: the thread that began it waits, and the one that reads it on is refused."""
    pipeline = opened("one", "two")
    stream = pipeline.stream("a")
    next(stream)

    def read_on() -> str:
        with pytest.raises(OptionError, match="still being read here"):
            [pipeline.complete("b") for _ in stream]
        return "".join(stream)

    with pytest.raises(OptionError, match="still being read here"):
        pipeline.complete("b")
    assert in_thread(read_on).result(5) == "e"
    assert pipeline.complete("b").text == "two"


def test_the_thread_that_began_an_answer_waits_while_another_reads_it(opened: OpenScripted) -> None:
    pipeline = opened("one", "two")
    stream = pipeline.stream("a")
    next(stream)
    gate = Gate(pipeline)
    reading = in_thread(lambda: "".join(stream))
    assert gate.entered.wait(5)
    threading.Timer(0.05, gate.opened.set).start()
    assert pipeline.complete("b").text == "two"
    assert reading.result(5) == "ne"


def test_a_threads_reused_ident_is_no_reason_to_refuse(opened: OpenScripted, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = opened("one", "two")
    monkeypatch.setattr(threading, "get_ident", lambda: 7)
    stream = in_thread(lambda: _first_read(pipeline)).result(5)
    waiting = in_thread(lambda: pipeline.complete("b").text)
    with pytest.raises(TimeoutError):
        waiting.result(0.05)
    stream.close()
    assert waiting.result(5) == "two"


def _first_read(pipeline: Pipeline) -> Stream:
    stream = pipeline.stream("a")
    next(stream)
    return stream


def _lose(pipeline: Pipeline) -> None:
    lost: Any = _first_read(pipeline)
    lost.me = lost


def test_an_answer_dropped_in_a_reference_cycle_makes_room(
    opened: OpenScripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = opened("one", "two", "three", "four")
    monkeypatch.setattr(turns, "_PATIENCE_S", 0.05)
    gc.disable()
    try:
        _lose(pipeline)
        assert pipeline.complete("b").text == "two"
        _lose(pipeline)
        assert in_thread(lambda: pipeline.complete("b").text).result(5) == "four"
    finally:
        gc.enable()


def test_many_threads_each_get_a_whole_answer(opened: OpenScripted) -> None:
    answers = [f"answer number {i}" for i in range(8)]
    pipeline = opened(*answers)
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(pipeline.complete("hi").text)) for _ in answers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == answers


@pytest.mark.parametrize("kind", ["stream", "tokens"])
def test_an_abandoned_answer_makes_room_without_the_garbage_collector(kind: str, opened: OpenScripted) -> None:
    pipeline = opened("one", "two", "three")
    gc.collect()
    gc.disable()
    try:
        for _ in pipeline.stream("a") if kind == "stream" else pipeline.tokens(pipeline.encode("a")):
            break
        assert pipeline.complete("b").text == "two"
    finally:
        gc.enable()


def test_a_closed_answer_keeps_what_there_is(opened: OpenScripted) -> None:
    pipeline = opened("one", "two")
    stream = pipeline.stream("a")
    next(stream)
    stream.close()
    stream.close()
    assert stream.result is not None
    assert (stream.result.text, stream.result.finish_reason) == ("o", "cancel")
    assert list(stream) == []
    unread = pipeline.stream("b")
    unread.close()
    assert unread.result is not None
    assert (unread.result.text, unread.result.prompt_tokens, list(unread)) == ("", 4, [])
    assert pipeline.complete("c").text == "two"


# --- closing ------------------------------------------------------------------------------------------------------


def test_closing_twice_and_using_a_closed_pipeline(opened: OpenScripted) -> None:
    pipeline = opened()
    pipeline.complete("hi")
    pipeline.close()
    pipeline.close()
    for use in (lambda: pipeline.complete("hi"), pipeline.reset, lambda: list(pipeline.tokens([1]))):
        with pytest.raises(ClosedError, match="this pipeline is closed"):
            use()
    with pytest.raises(ClosedError):
        pipeline.runtime.forward([])


def test_leaving_the_context_in_the_middle_of_an_answer(opened: OpenScripted) -> None:
    """The answer ends there, and what was raised while it was read is not hidden by the closing."""
    pipeline = opened()
    stream = pipeline.stream("hi")
    with pytest.raises(ZeroDivisionError), pipeline:
        [1 / 0 for _ in stream]
    assert list(stream) == []
    assert stream.result is not None
    assert (stream.result.text, stream.result.finish_reason) == ("T", "cancel")


def test_closing_does_not_wait_for_an_answer_that_nobody_reads(opened: OpenScripted) -> None:
    pipeline = opened()
    stream = pipeline.stream("hi")
    next(stream)
    waiting = in_thread(lambda: pipeline.complete("later").text)
    closing = in_thread(pipeline.close)
    assert closing.result(5) is None
    with pytest.raises(ClosedError, match="this pipeline is closed"):
        waiting.result(5)
    with pytest.raises(ClosedError):
        pipeline.runtime.forward([])
    assert list(stream) == []  # not an error: what there is stays
    assert stream.result is not None
    assert (stream.result.text, stream.result.finish_reason) == ("T", "cancel")


class Gate:
    """Holds a pipeline's next forward until it is opened."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()
        self._forward = runtime(pipeline).forward
        runtime(pipeline).forward = self  # type: ignore[method-assign, assignment]

    def __call__(self, segments: list[Any], want: Any = "last") -> list[Any]:
        self.entered.set()
        assert self.opened.wait(5)
        return self._forward(segments, want)


def test_closing_waits_for_the_forward_that_runs_and_not_for_the_rest_of_the_prompt(opened: OpenScripted) -> None:
    pipeline = opened(chunk=16)
    gate = Gate(pipeline)
    answer = in_thread(lambda: pipeline.complete("y" * 100))
    assert gate.entered.wait(5)
    closing = in_thread(pipeline.close)
    with pytest.raises(TimeoutError):
        closing.result(0.05)
    assert not runtime(pipeline)._closed
    gate.opened.set()
    closing.result(5)
    found = answer.result(5)
    assert (found.finish_reason, found.kv_used, runtime(pipeline).forwards) == ("cancel", 15, 1)
    assert runtime(pipeline)._closed


def test_closing_from_within_a_forward_frees_after_it(opened: OpenScripted) -> None:
    """As a signal handler would, in the thread that runs the forward."""
    pipeline = opened()
    forward = runtime(pipeline).forward

    def closing(segments: list[Any], want: Any = "last") -> list[Any]:
        pipeline.close()
        return forward(segments, want)

    runtime(pipeline).forward = closing  # type: ignore[method-assign, assignment]
    assert in_thread(lambda: pipeline.complete("hi").text).result(5) == "T"
    assert runtime(pipeline)._closed


# --- load ---------------------------------------------------------------------------------------------------------


def test_load_of_what_is_no_bundle(tmp_path: Path) -> None:
    file = tmp_path / "file.dsedge"
    file.write_bytes(b"x")
    for source in (tmp_path / "absent.dsedge", str(tmp_path / "absent"), file):
        with pytest.raises(NotFoundError, match="no bundle there"):
            load(source)
    with pytest.raises(NotFoundError, match="no model 'unheard-of'"):
        load("unheard-of")
    (tmp_path / "folder").mkdir()
    with pytest.raises(BundleError, match=r"holds no manifest\.json"):
        load(tmp_path / "folder")


def test_load_of_a_bundle_without_a_tokenizer_in_it(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "x.dsedge", ["a"])
    with pytest.raises(BundleError):
        load(with_file(bundle, "tokenizer.json", "{}").path, RuntimeOptions(runtime="scripted"))
    assert open_bundle(bundle.path).read_text("tokenizer.json") == "{}"


def test_the_scripted_runtime_needs_a_script(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "x.dsedge", ["a"])
    with pytest.raises(BundleError, match=r"holds no script\.json"):
        load(without(bundle, "script.json"), RuntimeOptions(runtime="scripted"))
