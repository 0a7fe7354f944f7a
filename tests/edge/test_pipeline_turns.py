"""Who may go when: cancelling, faults, one answer at a time, closing; and loading what is no bundle."""

from __future__ import annotations

import gc
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from edge.bundle import open_bundle, sha256
from edge.errors import BundleError, ClosedError, NotFoundError, NumericsError, OptionError
from edge.kv import KvLayout
from edge.options import GenerateOptions, RuntimeOptions
from edge.pipeline import Pipeline, load
from runtimes.scripted import ScriptedRuntime, write_bundle
from tests.edge.scripted import FOX, OpenScripted, runtime, without

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
    with pytest.raises(OptionError, match="unknown runtime 'nope'; known are auto, onnx, scripted"):
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


def test_closing_waits_for_the_answer_of_another_thread(opened: OpenScripted) -> None:
    pipeline = opened()
    stream = pipeline.stream("hi")
    next(stream)
    thread = threading.Thread(target=pipeline.close)
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    assert "".join(stream) == FOX[1:]
    thread.join(5)
    assert not thread.is_alive()
    with pytest.raises(ClosedError):
        pipeline.complete("hi")


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
    path = bundle.path / "tokenizer.json"
    path.write_text("{}")
    manifest = json.loads((bundle.path / "manifest.json").read_text())
    manifest["files"]["tokenizer.json"] = {"size": 2, "sha256": sha256(path)}
    (bundle.path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError):
        load(bundle.path, RuntimeOptions(runtime="scripted"))
    assert open_bundle(bundle.path).read_text("tokenizer.json") == "{}"


def test_the_scripted_runtime_needs_a_script(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "x.dsedge", ["a"])
    with pytest.raises(BundleError, match=r"holds no script\.json"):
        load(without(bundle, "script.json"), RuntimeOptions(runtime="scripted"))
