"""What the torch runtime has beside the conformance suite: fixed shapes, other dtypes and places, errors of memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import edge
from edge.bundle import Bundle
from edge.engine import Engine
from edge.errors import ClosedError, DeviceError, NumericsError, OptionError, UnsupportedError
from edge.kv import plan_layout
from edge.options import GenerateOptions, RuntimeOptions
from edge.results import Request
from edge.runtime import Batch, open_runtime, support, widest_chunk
from edge.sampling import Sampler
from edge.session import Session
from exporters.reference import Reference
from tests.runtimes.test_conformance import MODELS, random_ids

if not find_spec("torch"):
    pytest.skip("torch is not installed", allow_module_level=True)

import torch

from runtimes.torch import devices, engine, kernels, program, tuning
from runtimes.torch.engine import TorchRuntime

# All kinds of ops, a window, a softcap, and matrices that heads of two schemes share.
NAMES = ("llama", "gemma2", "deepseek-v3", "qwen3-moe", "smollm3")


class Bundles(dict[str, Bundle]):
    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders = folders

    def __missing__(self, name: str) -> Bundle:
        make, config = MODELS[name]
        folder = self._folders.mktemp(name)
        self[name] = edge.export(make(folder / "source", **config), folder / "tiny.dsedge", targets=(), effort="none")
        return self[name]


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    return Bundles(tmp_path_factory)


Open = Callable[..., TorchRuntime]


@pytest.fixture
def opened() -> Iterator[Open]:
    runtimes: list[TorchRuntime] = []

    def make(bundle: Bundle, layout: dict[str, Any] | None = None, **options: Any) -> TorchRuntime:
        planned = plan_layout(bundle.spec, **{"context": 128, "chunk": 32, "sequences": 4, **(layout or {})})
        runtimes.append(open_runtime(bundle, planned, RuntimeOptions(runtime="torch", **options)))  # type: ignore[arg-type]
        return runtimes[-1]

    yield make
    for runtime in runtimes:
        runtime.close()


def expected(bundle: Bundle, ids: list[int], context: int = 128) -> np.ndarray[Any, Any]:
    return Reference(bundle.graph, bundle.weights.read, context=context).run(ids)


@pytest.mark.parametrize("name", NAMES)
def test_steps_of_fixed_shapes_are_the_references(
    name: str, bundles: Bundles, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One to three sequences of different lengths, padded to four, around a turn of a ring and of a block."""
    monkeypatch.setattr(engine, "FIXED", ("cpu",))
    bundle = bundles[name]
    runtime = opened(bundle, exact=True)
    first = Session(runtime)
    sessions = [first, *(Session(runtime, first.pools) for _ in range(2))]
    texts = [random_ids(count, seed=count) for count in (60, 3, 30)]
    for session, text in zip(sessions, texts, strict=True):
        session.feed(text)
    for step in range(8):
        some = sessions[: 1 + step % 3]
        for text in texts[: len(some)]:
            text.append(random_ids(1, seed=step)[0])
        segments = [session.segment([text[-1]]) for session, text in zip(some, texts, strict=False)]
        found = runtime.forward(Batch(tuple(segments)))
        for session, text, logits in zip(some, texts, found, strict=False):
            session.commit([text[-1]])
            assert np.abs(logits[0] - expected(bundle, text)[-1]).max() < 1e-3, step
    assert runtime._decoder is not None
    assert {shape.sequences for shape in runtime._decoder._shapes} == {1, 2, 4}


def test_fixed_steps_see_sinks_and_a_window_that_went_round(
    bundles: Bundles, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = {"context": 32, "chunk": 16, "policy": "sliding", "sinks": 3, "sequences": 1}
    plain = Session(opened(bundles["llama"], layout, exact=True))
    monkeypatch.setattr(engine, "FIXED", ("cpu",))
    fixed = Session(opened(bundles["llama"], layout, exact=True))
    ids = random_ids(150)
    for session in (plain, fixed):
        session.feed(ids[:90])
    for token in ids[90:]:
        assert np.abs(plain.step([token]) - fixed.step([token])).max() < 1e-4


@pytest.mark.parametrize("name", ["llama", "gemma2", "deepseek-v3"])
def test_keys_and_values_in_the_hosts_memory_give_the_same_bits(name: str, bundles: Bundles, opened: Open) -> None:
    """Batches, a ring that went round, a fork that shares blocks, sinks that move: all of it by way of copies."""
    layout = {"context": 48, "chunk": 16, "policy": "sliding", "sinks": 2, "sequences": 3}
    found = []
    for place in ("device", "host"):
        runtime = opened(bundles[name], layout, exact=True, kv=place)
        session = Session(runtime)
        made = [session.feed(random_ids(130))]
        other = session.fork()
        segments = (session.segment(random_ids(5, seed=1), 5), other.segment(random_ids(1, seed=2)))
        made += runtime.forward(Batch(segments))
        found.append(np.concatenate([np.atleast_2d(part) for part in made if part is not None]))
    assert np.array_equal(*found)


@pytest.mark.parametrize(("compute", "allowed"), [("bfloat16", 0.1), ("float16", 0.01), ("float32", 1e-4)])
@pytest.mark.parametrize("name", NAMES)
def test_narrower_products_are_close_to_the_reference(
    name: str, compute: Any, allowed: float, bundles: Bundles, opened: Open
) -> None:
    ids = random_ids(40)
    found = Session(opened(bundles[name], {"chunk": 40}, compute=compute)).step(ids, "all")
    assert 0 < away(found, expected(bundles[name], ids)) < allowed


def away(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> float:
    """The root mean square of what logits differ by, in units of their standard deviation."""
    return float((found - wanted).std() / wanted.std())


def test_all_weights_as_float16_where_that_is_asked_for(bundles: Bundles, opened: Open) -> None:
    runtime = opened(bundles["llama"], {"chunk": 40}, weights="float16")
    assert set(runtime.ways.values()) == {"dense float16"}
    ids = random_ids(40)
    assert 0 < away(Session(runtime).step(ids, "all"), expected(bundles["llama"], ids)) < 0.01


def test_a_kernel_is_told_and_one_that_fails_is_not_used(
    bundles: Bundles, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, ids = bundles["llama"], random_ids(20)
    runtime = opened(bundle)
    assert all(way.startswith("int4 (cpu), within 0.00") for way in runtime.ways.values())
    wrong = kernels.KERNELS[0].multiply
    monkeypatch.setattr(kernels, "TOLERANCE", 1e-6)
    runtime = opened(bundle)
    assert "dequantized per layer: int4 (cpu) is off by" in runtime.ways["int4-g32-sym"]
    assert "1e-06 is allowed" in runtime.notes[0]
    monkeypatch.undo()
    assert kernels.KERNELS[0].multiply is wrong
    assert np.abs(Session(runtime).step(ids, "all") - expected(bundle, ids)).max() < 1e-3


def test_weights_are_dequantized_into_one_small_buffer(
    bundles: Bundles, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(engine._NUMBERS, "cpu", 3000)
    runtime = opened(bundles["llama"], exact=True)
    ids = random_ids(20)
    assert np.abs(Session(runtime).step(ids, "all") - expected(bundles["llama"], ids)).max() < 1e-3
    assert runtime._work.nbytes <= 5 * 3000


def test_tokens_are_drawn_on_the_device_as_on_the_host(
    bundles: Bundles, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the engine: three answers together, the same logits drawn from by the torch core and by numpy's."""
    bundle, found = bundles["llama"], {}
    for core in ("numpy", "torch"):
        monkeypatch.setattr(engine, "FIXED", ("cpu",) if core == "torch" else ())
        runtime = opened(bundle, exact=True)
        assert runtime.capabilities.sampling == ("torch" if core == "torch" else None)
        asked: list[bool] = []
        forward = runtime.forward

        def seen(batch: Batch, forward: Any = forward, asked: list[bool] = asked) -> Any:
            asked.append(batch.on_device)
            return forward(batch)

        monkeypatch.setattr(runtime, "forward", seen)
        running = Engine(runtime)
        answers = []
        for number in range(3):
            options = GenerateOptions(max_tokens=20, ignore_eos=True, temperature=0.9, top_p=0.95, seed=number)
            request = Request(tuple(random_ids(5, seed=number)), (), 300, options, threading.Event(), {})
            answers.append(running.add(request, Sampler(options, 300, core=core)))
        while running.step() or running.answers:
            pass
        assert set(asked) == {core == "torch"}
        found[core] = [answer.tokens for answer in answers]
    assert found["torch"] == found["numpy"]
    assert len(found["torch"][0]) == 20


def test_nan_on_the_device_raises(bundles: Bundles, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "FIXED", ("cpu",))
    runtime = opened(bundles["llama"], exact=True)
    runtime._weights.vectors["norm"] = torch.full((64,), torch.nan)
    rows = runtime.forward(Batch((Session(runtime).segment([5]),), on_device=True))[0]
    with pytest.raises(NumericsError, match="is nan"):
        Sampler(GenerateOptions(), 300, core="torch").sample(rows[-1])


def test_a_session_outlives_a_forward_without_memory(
    bundles: Bundles, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, ids = bundles["llama"], random_ids(30)
    runtime = opened(bundle, exact=True)
    session = Session(runtime)
    session.feed(ids[:20])
    evaluate, calls = program.EVALUATORS[program.Gate], []

    def fails(*given: Any) -> Any:
        calls.append(given)
        if len(calls) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return evaluate(*given)

    monkeypatch.setitem(program.EVALUATORS, program.Gate, fails)
    with pytest.raises(
        OptionError, match=r"cpu has no memory for so many tokens.*MB are free\); choose a smaller chunk"
    ):
        session.step(ids[20:])
    monkeypatch.undo()
    assert np.abs(session.step(ids[20:]) - expected(bundle, ids)[-1]).max() < 1e-3


def test_a_model_that_memory_cannot_hold_is_told_with_numbers(bundles: Bundles, opened: Open) -> None:
    with pytest.raises(OptionError, match=r"weights of .* MB and keys and values of 65536 sequences of 100000 tokens"):
        opened(bundles["llama"], {"context": 100_000, "sequences": 65536})


def test_other_errors_of_torch_are_not_taken_for_one_of_memory() -> None:
    assert not devices.is_out_of_memory(RuntimeError("shape '[2]' is invalid for input of size 3"))
    assert devices.is_out_of_memory(RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"))


def test_the_chunk_is_doubled_while_that_gains(monkeypatch: pytest.MonkeyPatch) -> None:
    """By made-up times: a device that gains up to 256 tokens at once, one that is slow, and a short context."""
    times = {64: 0.02, 128: 0.03, 256: 0.05, 512: 0.099, 1024: 0.1}
    asked: list[int] = []

    def seconds(count: int, scale: float = 1.0) -> float:
        asked.append(count)
        return times[count] * scale

    assert tuning.climb(seconds, 1024) == 256
    assert asked == [64, 128, 256, 512]
    assert tuning.climb(lambda count: seconds(count, 40.0), 1024) == 128
    assert tuning.climb(seconds, 200) == 128
    assert tuning.climb(lambda count: 1.0, 30) == 30


def test_the_chunk_is_measured_once_a_bundle(bundles: Bundles, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DSEDGE_CACHE", str(tmp_path))
    monkeypatch.setattr("edge.remembered._known", {})
    asked: list[int] = []

    def seconds(session: Session, count: int) -> float:
        asked.append(count)
        return 0.01 if count <= 128 else 1.0

    monkeypatch.setattr(tuning, "_seconds", seconds)
    bundle, options = bundles["llama"], RuntimeOptions(runtime="torch", context=512)
    chunk = widest_chunk(bundle, options)
    assert chunk == 1024
    layout = plan_layout(bundle.spec, 512, chunk=chunk)
    for _ in range(2):
        with closing(open_runtime(bundle, layout, options)) as runtime:
            assert runtime.layout.chunk == 128
            assert runtime.layout.rings == layout.rings
            ids = random_ids(128)
            assert np.abs(Session(runtime).step(ids) - Session(runtime).feed(ids)).max() == 0
    assert asked == [64, 128, 256]
    with closing(open_runtime(bundle, layout, replace(options, chunk=300))) as runtime:
        assert runtime.layout.chunk == 512


def test_options_of_this_runtime_are_refused_by_others(bundles: Bundles) -> None:
    layout = plan_layout(bundles["llama"].spec, 64)
    for options in ({"compute": "bfloat16"}, {"weights": "float16"}, {"kv": "host"}):
        with pytest.raises(UnsupportedError, match=r"native has no option (compute|weights|kv) .*; torch has it"):
            open_runtime(bundles["llama"], layout, RuntimeOptions(runtime="native", **options))  # type: ignore[arg-type]


def test_closed_within_a_call_it_finishes_that(bundles: Bundles, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a signal handler closes it; what the call still needs stays until its end."""
    runtime = opened(bundles["llama"], exact=True)
    session = Session(runtime)
    evaluate = program.EVALUATORS[program.Gate]

    def closes(*given: Any) -> Any:
        runtime.close()
        return evaluate(*given)

    monkeypatch.setitem(program.EVALUATORS, program.Gate, closes)
    ids = random_ids(20)
    assert np.abs(session.step(ids, "all") - expected(bundles["llama"], ids)).max() < 1e-3
    assert runtime._pool is None
    with pytest.raises(ClosedError, match="load the model again"):
        session.step([5])


def test_a_token_outside_the_vocabulary_is_an_error(bundles: Bundles, opened: Open) -> None:
    with pytest.raises(OptionError, match=r"token 300 is outside the vocabulary of 0…299"):
        Session(opened(bundles["llama"])).step([300])


def test_a_torch_that_is_missing_or_too_old_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "version.py").write_text("from typing import Optional\n\n__version__ = '2.3.1+cu121'\ndebug = False\n")
    found = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: found)
    assert support("torch").devices == ()
    assert "PyTorch 2.3.1 is too old: 2.5 or newer is needed: pip install -U torch" in support("torch").reason
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install 'dsedge[torch]'" in support("torch").reason


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_a_device_that_is_not_there_is_named(device: str, bundles: Bundles) -> None:
    if device in support("torch").devices:
        pytest.skip(f"{device} is there")
    with pytest.raises(DeviceError, match=rf"'{device}' is not usable by runtime torch; here are: .*cpu"):
        open_runtime(bundles["llama"], plan_layout(bundles["llama"].spec, 64), RuntimeOptions("torch", device))


@pytest.mark.parametrize("device", ["cuda", "mps"])
@pytest.mark.parametrize("name", NAMES)
def test_on_a_gpu_logits_are_the_references(name: str, device: str, bundles: Bundles, opened: Open) -> None:
    """Prompts and steps, exact and as it is used."""
    if device not in support("torch").devices:
        pytest.skip(f"no {device} here: {support('torch').reason}")
    ids = random_ids(48)
    wanted = expected(bundles[name], ids)
    for exact, allowed in ((True, 1e-3), (False, 0.1)):
        session = Session(opened(bundles[name], device=device, exact=exact))
        found = np.concatenate([session.step(ids[:32], "all"), *(session.step([i])[None] for i in ids[32:])])
        assert away(found, wanted) < allowed
