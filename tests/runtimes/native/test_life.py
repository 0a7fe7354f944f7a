"""Calls that are wrong or come at the wrong time: malformed segments, closing from a signal handler, forks."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import edge
from edge.bundle import Bundle
from edge.errors import ClosedError, InternalError
from edge.kv import Move, plan_layout
from edge.options import RuntimeOptions
from edge.runtime import Batch, Segment
from edge.session import Session
from runtimes import native
from runtimes.native.engine import NativeRuntime
from tests.exporters.tiny import tiny_llama

pytest.importorskip("runtimes.native._native", reason="the native engine was not built here")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("life")
    return edge.export(tiny_llama(folder / "source"), folder / "tiny.dsedge")


@pytest.fixture
def runtime(bundle: Bundle) -> Iterator[NativeRuntime]:
    runtime = native.open_model(bundle, plan_layout(bundle.spec, 64, sequences=2), RuntimeOptions(threads=2))
    yield runtime
    runtime.close()


def segment_of(runtime: NativeRuntime, count: int = 3) -> Segment:
    return Session(runtime).segment(range(5, 5 + count))


def test_malformed_segments_are_internal_errors(runtime: NativeRuntime) -> None:
    fine = segment_of(runtime)
    (ring,) = fine.plan.rings

    def with_runs(*runs: tuple[int, int, int], start: int = 0) -> Segment:
        plan = replace(fine.plan, start=start, rings=(replace(ring, start=start, runs=np.array(runs)),))
        return replace(fine, plan=plan)

    def with_rings(*rings: Any) -> Segment:
        return replace(fine, plan=replace(fine.plan, rings=rings))

    wrong = [
        ([], "segments with runs of each ring"),
        ([fine, fine], "two rows for one slot"),
        ([with_rings()], "runs of each ring"),
        ([with_rings(ring, ring)], "runs of each ring"),
        ([replace(fine, tokens=fine.tokens[:2])], "segments of other tokens"),
        ([with_runs((0, 0, 2))], "new rows without a slot"),
        ([with_runs((0, 0, 4))], "positions behind the new ones"),
        ([with_runs((0, 0, 2), (3, 8, 1), start=1)], "new rows without a slot"),
        ([with_runs((0, 0, 2), (1, 8, 2))], "runs out of order"),
        ([with_runs((0, 126, 3))], "of slots that are not there"),
        ([with_runs((0, -1, 3))], "of slots that are not there"),
        ([with_runs((0, 0, 3), (2**62, 0, 2**62))], "runs out of order"),
    ]
    for segments, message in wrong:
        with pytest.raises(InternalError, match=f"called wrongly: .*{message}"):
            runtime.forward(Batch(tuple(segments)))
    for move in (Move(1, 0, 64, 1), Move(0, 0, 64, 65), Move(0, 128, 0, 1), Move(0, -1, 0, 1, 64)):
        with pytest.raises(InternalError, match="called wrongly: kv: "):
            runtime.move(move)
    assert np.isfinite(runtime.forward(Batch((fine,)))[0]).all()


def test_results_never_go_to_a_copy(runtime: NativeRuntime) -> None:
    """Arrays of another type would be converted, and what is written to the copy be lost."""
    engine: Any = runtime._engine
    runtime.forward(Batch((segment_of(runtime),)))
    with pytest.raises(TypeError):
        engine.read(runtime._program.hidden, np.empty((3, runtime.spec.hidden_size)))
    with pytest.raises(TypeError):
        engine.read(runtime._program.hidden, np.empty((runtime.spec.hidden_size, 3), np.float32).T)


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals there")
def test_a_signal_handler_may_close_within_a_call(runtime: NativeRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    segment, use = segment_of(runtime), runtime._use
    before = runtime.forward(Batch((segment,)))[0]

    def interrupted(call: Callable[[Any], None]) -> None:
        def run(engine: Any) -> None:
            os.kill(os.getpid(), signal.SIGUSR1)
            call(engine)

        use(run)

    old = signal.signal(signal.SIGUSR1, lambda *_: runtime.close())
    try:
        monkeypatch.setattr(runtime, "_use", interrupted)
        assert np.array_equal(runtime.forward(Batch((segment,)))[0], before)  # what was closed under way still ends
    finally:
        signal.signal(signal.SIGUSR1, old)
    with pytest.raises(ClosedError):
        runtime.forward(Batch((segment,)))


@pytest.mark.skipif(sys.platform == "win32", reason="no fork there")
@pytest.mark.filterwarnings("ignore:.*use of fork")
@pytest.mark.parametrize("held", [False, True], ids=["idle", "in-a-call"])
def test_a_forked_process_is_told_so_and_can_end(held: bool, runtime: NativeRuntime) -> None:
    """The child has none of the threads: it must neither wait for them nor for a lock that one of them held."""
    segment = segment_of(runtime)
    entered, leave = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        entered.set()
        leave.wait()

    thread = threading.Thread(target=runtime._use, args=(hold,))
    if held:
        thread.start()
        entered.wait()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            runtime.forward(Batch((segment,)))
        except ClosedError as error:
            code = 0 if "forked" in str(error) else 2
        runtime.close()
        runtime._engine = None  # what the end of an interpreter does
        os._exit(code)
    leave.set()
    _, status = os.waitpid(child, 0)
    if held:
        thread.join()
    assert os.waitstatus_to_exitcode(status) == 0
    assert np.isfinite(runtime.forward(Batch((segment,)))[0]).all()
