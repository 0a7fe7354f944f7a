"""Who may go when: cancelling, faults, one answer at a time, closing; and loading what is no bundle."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import pytest

from edge import sizing
from edge.bundle import open_bundle
from edge.engine.answer import AHEAD
from edge.errors import BundleError, BusyError, ClosedError, NotFoundError, NumericsError, OptionError
from edge.kv import KvLayout
from edge.options import GenerateOptions, RuntimeOptions
from edge.pipeline import Pipeline, load
from edge.runtime import Batch, Segment
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

    def cancelling(batch: Batch) -> list[Any]:
        if runtime(pipeline).forwards == 1:
            cancel.set()
        return forward(batch)

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
    with pytest.raises(OptionError, match="sinks are kept by the policy sliding or evict, not by error"):
        Pipeline(bundle, RuntimeOptions(runtime="scripted", sinks=2))
    assert closed == []
    with monkeypatch.context() as small:
        small.setattr(sizing, "memory_limit", lambda: bundle.weights.path.stat().st_size + 100)
        with pytest.raises(OptionError, match="keys and values for a context of 128"):
            Pipeline(bundle, RuntimeOptions(runtime="scripted"))
    assert len(closed) == 1
    with pytest.raises(OptionError, match="a context of 129 was asked for and the model was trained for 128"):
        Pipeline(bundle, RuntimeOptions(runtime="scripted", context=129))
    with pytest.raises(OptionError, match=r"unknown runtime .nope.; known are auto, native, onnx, torch, coreml"):
        Pipeline(bundle, RuntimeOptions(runtime="nope"))


def test_the_default_context_is_the_models_own_up_to_4096(opened: OpenScripted) -> None:
    layouts: list[KvLayout] = [opened(bundle_context=n).runtime.layout for n in (100, 8192)]
    assert [layout.context for layout in layouts] == [100, 4096]


# --- many answers at once -----------------------------------------------------------------------------------------


def test_answers_that_are_read_by_turns_stay_apart(opened: OpenScripted) -> None:
    pipeline = opened("one", "two", "three")
    first, second = pipeline.stream("a"), pipeline.stream("b")
    assert [next(first), next(second), next(first)] == ["o", "t", "n"]
    assert pipeline.complete("c").text == "three"
    assert ("".join(second), "".join(first)) == ("wo", "e")


@pytest.mark.parametrize("sequences", [1, 2])
def test_an_answer_that_nobody_reads_pauses_and_holds_up_nobody(sequences: int, opened: OpenScripted) -> None:
    """It may be a few tokens ahead; with one sequence it loses that to the other, and is computed again."""
    pipeline = opened("x" * 100, "y" * 50, sequences=sequences, context=256)
    _remember(pipeline)
    first = pipeline.stream("a", GenerateOptions(max_tokens=100, ignore_eos=True))
    begun = next(first)
    assert len(pipeline.complete("b" * 200, GenerateOptions(max_tokens=40, ignore_eos=True)).tokens) == 40
    (paused,) = pipeline._readers.engine.answers.values()
    assert len(paused.made) == 1 + AHEAD
    rest = "".join(first)
    alone = opened("x" * 100, "y" * 50, context=256)
    _remember(alone)
    assert begun + rest == alone.complete("a", GenerateOptions(max_tokens=100, ignore_eos=True)).text


def _remember(pipeline: Pipeline) -> None:
    """Let the next token follow from all that the latest query saw, so that a wrong slot is a wrong answer."""
    backend = runtime(pipeline)

    def remembering(segment: Segment) -> int:
        backend._slots[0][segment.plan.rings[0].writes] = segment.tokens
        return 97 + sum((i + 1) * token for i, token in enumerate(backend.seen(segment))) % 26

    backend._answer = remembering  # type: ignore[method-assign]


def test_another_thread_goes_on_while_an_answer_is_not_read(opened: OpenScripted) -> None:
    pipeline = opened("one", "two")
    first = pipeline.stream("a")
    next(first)
    assert in_thread(lambda: pipeline.complete("b").text).result(5) == "two"
    assert "".join(first) == "ne"


def test_an_answer_is_cancelled_while_another_ones_step_runs(opened: OpenScripted) -> None:
    pipeline = opened("one", "two")
    gate = Gate(pipeline)
    first = in_thread(lambda: pipeline.complete("a").text)
    assert gate.entered.wait(5)
    cancel = threading.Event()
    waiting = in_thread(lambda: pipeline.complete("b", cancel=cancel).finish_reason)
    with pytest.raises(TimeoutError):
        waiting.result(0.05)
    cancel.set()
    assert waiting.result(5) == "cancel"
    gate.opened.set()
    assert first.result(5) == "one"


def test_an_answer_begun_in_one_thread_is_read_on_in_another(opened: OpenScripted) -> None:
    pipeline = opened("one", "two")
    stream = pipeline.stream("a")
    next(stream)
    assert in_thread(lambda: next(stream)).result(5) == "n"
    assert pipeline.complete("b").text == "two"
    assert "".join(stream) == "e"


def test_an_answer_cannot_be_read_within_a_step(opened: OpenScripted) -> None:
    """As a signal handler would, in the thread that runs the forward: it would wait for itself."""
    pipeline = opened("one", "two")
    forward, refused = runtime(pipeline).forward, []

    def reading(batch: Batch) -> list[Any]:
        if not refused:
            for use in (lambda: pipeline.complete("b"), pipeline.reset):
                with pytest.raises(OptionError, match="within a step"):
                    use()
                refused.append(use)
        return forward(batch)

    runtime(pipeline).forward = reading  # type: ignore[method-assign, assignment]
    assert pipeline.complete("a").text == "one"
    assert len(refused) == 2


def test_threads_share_passes(opened: OpenScripted) -> None:
    """Four readers of fifty tokens each: their steps are common ones, so that there are far fewer than two hundred."""
    pipeline = opened(*["z" * 50] * 4, bundle_delay_s=0.002)
    found = [in_thread(lambda: pipeline.complete("hi").text) for _ in range(4)]
    assert [each.result(20) for each in found] == ["z" * 50] * 4
    assert runtime(pipeline).forwards < 120


def test_more_answers_than_may_wait_are_refused(opened: OpenScripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.engine.engine._MOST_WAITING", 3)
    pipeline = opened("one")
    unread = [pipeline.stream("a") for _ in range(3)]
    for stream in unread:
        next(stream)
    with pytest.raises(BusyError, match="3 answers are under way already"):
        pipeline.complete("b")
    unread[1].close()
    assert pipeline.complete("b").text == "one"


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
        pipeline.runtime.forward(Batch(()))


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
    assert in_thread(pipeline.close).result(5) is None
    with pytest.raises(ClosedError):
        pipeline.complete("later")
    with pytest.raises(ClosedError):
        pipeline.runtime.forward(Batch(()))
    assert list(stream) == []  # not an error: what there is stays
    assert stream.result is not None
    assert (stream.result.text, stream.result.finish_reason) == ("T", "cancel")


class Gate:
    """Holds a pipeline's next forward until it is opened."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()
        self._forward = runtime(pipeline).forward
        runtime(pipeline).forward = self  # type: ignore[method-assign, assignment]

    def __call__(self, batch: Batch) -> list[Any]:
        self.entered.set()
        assert self.opened.wait(5)
        return self._forward(batch)


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

    def closing(batch: Batch) -> list[Any]:
        pipeline.close()
        return forward(batch)

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
