"""Sessions in files: they go on exactly, and what is damaged or from elsewhere is refused by name."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge import saving
from edge.cli import main
from edge.errors import FormatError, OptionError, PromptTooLongError, StorageError
from edge.kv import Pools
from edge.options import GenerateOptions, RuntimeOptions
from edge.pipeline import Pipeline
from edge.session import Session
from runtimes.scripted import write_bundle
from tests.edge.interrupts import interrupted_at
from tests.edge.scripted import OpenScripted, runtime
from tests.edge.test_engine import Hash, ids


def talk(pipeline: Any, prompt: list[int], count: int = 5) -> list[int]:
    return [event.id for event in pipeline.tokens(prompt, GenerateOptions(max_tokens=count))]


@pytest.mark.parametrize("length", [1, 63, 64, 65, 89, 90, 93, 300])
@pytest.mark.parametrize("sinks", [0, 3])
def test_k9_a_sequence_goes_on_in_another_runtime(length: int, sinks: int, tmp_path: Path) -> None:
    """Before and after its window of 90 tokens is full: the next token follows from all that is seen, and where."""
    bundle = write_bundle(tmp_path / "x.dsedge", ["x"])
    options: dict[str, Any] = {"context": 90, "chunk": 16, "sinks": sinks, "policy": "sliding"}
    first, second = Hash(bundle, **options), Hash(bundle, **options)
    session = Session(first)
    session.feed(ids(0, length))
    saving.save(tmp_path / "s", bundle, session, {"any": ["thing"]})
    found = saving.load(tmp_path / "s", bundle, second, Pools(second.layout))
    assert (found.exact, found.note, found.session.tokens) == (True, {"any": ["thing"]}, session.tokens)
    assert (found.session.dropped, found.session.cache.used) == (session.dropped, session.cache.used)
    for count in (1, 7, 64, 80):
        more = ids(3, count)
        assert np.array_equal(session.feed(more), found.session.feed(more))
    assert second.visible == first.visible


def test_a_pipeline_saves_a_conversation_and_goes_on_from_it(opened: OpenScripted, tmp_path: Path) -> None:
    pipeline = opened("one", "two")
    prompt = ids(0, 100)
    answer = talk(pipeline, prompt)
    assert pipeline.save(tmp_path / "s", [*prompt, *answer], "note") == 100 + 3  # the end token was drawn and not run
    prompt += [*answer, 7, 8]
    with Pipeline(pipeline.bundle, RuntimeOptions(runtime="scripted")) as other:
        found = other.load_session(tmp_path / "s")
        assert (found.exact, found.note) == (True, "note")
        run = other.tokens(prompt)
        assert bytes(event.id for event in run) == b"one"
        assert run.progress.cached_tokens == 103
    with pytest.raises(OptionError, match="none of these tokens has been computed"):
        pipeline.save(tmp_path / "t", [1, 2, 3])


def test_what_is_damaged_is_refused(opened: OpenScripted, tmp_path: Path) -> None:
    pipeline = opened("one")
    talk(pipeline, ids(0, 30))
    path = tmp_path / "s"
    pipeline.save(path, ids(0, 30))
    whole = path.read_bytes()
    random = np.random.default_rng(0)
    for cut in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(FormatError):
            pipeline.load_session(path)
    for _ in range(60):
        flipped = bytearray(whole)
        flipped[random.integers(len(whole))] ^= 1 << int(random.integers(8))
        path.write_bytes(bytes(flipped))
        with pytest.raises(FormatError):
            pipeline.load_session(path)
    with pytest.raises(FormatError):
        pipeline.load_session(tmp_path / "absent")
    path.write_bytes(whole)
    pipeline.load_session(path)


def forged(path: Path, pipeline: Any, change: Any) -> None:
    """A file whose sum is right, and whose contents are not."""
    session = pipeline._readers.engine.residents.find(ids(0, 30))
    real = saving._tensors

    def tensors(*args: Any) -> Any:
        found = real(*args)
        change(found)
        return found

    saving._tensors = tensors
    try:
        saving.save(path, pipeline.bundle, session)
    finally:
        saving._tensors = real


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tokens", np.array([5, 999], np.int32)),
        ("tokens", np.array([[5]], np.int32)),
        ("tokens", np.array([5, 6], np.int32)),
        ("positions.0", np.arange(1, 31)),
        ("keys.0", np.full((30, 1, 2), np.nan, np.float32)),
        ("keys.0", np.zeros((30, 2, 2), np.float32)),
        ("values.0", np.zeros((29, 1, 2), np.float32)),
        ("session", np.frombuffer(b"[]", np.uint8)),
        ("session", np.frombuffer(b'{"format": 2}', np.uint8)),
        ("session", np.frombuffer(b'{"format": 1}', np.uint8)),
    ],
)
def test_what_contradicts_itself_is_refused(name: str, value: Any, opened: OpenScripted, tmp_path: Path) -> None:
    pipeline = opened("one")
    talk(pipeline, ids(0, 30), 1)

    def change(tensors: dict[str, Any]) -> None:
        info, _ = tensors[name]
        types = {np.dtype(dtype): known for known, dtype in saving._DTYPES.items()}
        tensors[name] = (saving.TensorInfo(types[value.dtype], value.shape, info.start, info.stop), value)

    forged(tmp_path / "s", pipeline, change)
    with pytest.raises((FormatError, OptionError)):
        pipeline.load_session(tmp_path / "s")
    pipeline.reset()
    pool = pipeline._readers.engine.residents.pools.pools[0]
    assert pool.free == pool.blocks


def test_sessions_from_elsewhere_are_refused_by_name(opened: OpenScripted, tmp_path: Path) -> None:
    pipeline = opened("one", context=64)
    talk(pipeline, ids(0, 30))
    pipeline.save(tmp_path / "s", ids(0, 30))
    with pytest.raises(OptionError, match="another bundle"):
        opened("two", context=64).load_session(tmp_path / "s")
    bundle = pipeline.bundle
    for options, message in (
        ({"context": 64, "policy": "sliding"}, "has policy error, and here it is sliding"),
        ({"context": 16}, "33 tokens and the context holds 16"),
    ):
        other = Hash(bundle, chunk=8, **options)  # type: ignore[arg-type]
        with pytest.raises((OptionError, PromptTooLongError), match=message):
            saving.load(tmp_path / "s", bundle, other, Pools(other.layout))


def test_a_crash_while_saving_keeps_the_old_file(opened: OpenScripted, tmp_path: Path, monkeypatch: Any) -> None:
    pipeline = opened("one", "two")
    talk(pipeline, ids(0, 30))
    path = tmp_path / "s"
    pipeline.save(path, ids(0, 30))
    before = path.read_bytes()
    talk(pipeline, ids(0, 40))
    line, more = 0, True
    while more:
        line += 7
        more = interrupted_at(line, lambda: pipeline.save(path, ids(0, 40)))
        assert not more or path.read_bytes() == before or line > 100
        assert os.listdir(tmp_path).count("s") == 1
        assert not more or [name for name in os.listdir(tmp_path) if name.startswith(".writing")] == []
    assert path.read_bytes() != before
    monkeypatch.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    after = path.read_bytes()
    with pytest.raises(StorageError, match="s: cannot be written: No space left"):
        pipeline.save(path, ids(0, 40))
    assert path.read_bytes() == after
    assert runtime(pipeline).forwards > 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a process that can be copied")
def test_a_process_that_dies_while_saving_leaves_the_old_file(opened: OpenScripted, tmp_path: Path) -> None:
    """When all is written and nothing is renamed."""
    pipeline = opened("one", "two")
    talk(pipeline, ids(0, 30))
    path = tmp_path / "s"
    pipeline.save(path, ids(0, 30))
    before = path.read_bytes()
    talk(pipeline, ids(0, 40))
    child = os.fork()
    if not child:
        os.fsync = lambda handle: os._exit(9)  # type: ignore[assignment]
        pipeline.save(path, ids(0, 40))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert path.read_bytes() == before
    assert pipeline.load_session(path).session.tokens == [*ids(0, 30), *b"one"]
    (left,) = tmp_path.glob(".writing-*")
    assert left.stat().st_size > 1000
    pipeline.save(path, ids(0, 40))  # which goes on beside what is left
    assert len(pipeline.load_session(path).session.tokens) > 40


def test_the_command_line_goes_on_with_a_session(
    opened: OpenScripted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = opened("one").bundle.path
    line = ["run", str(path), "--runtime", "scripted", "--session", str(tmp_path / "talk"), "--json"]
    for turn, cached in enumerate((0, None)):
        assert main([*line, "hello there"]) == 0
        out, err = capsys.readouterr()
        found = json.loads(out)
        assert found["text"] == "one"
        assert cached is None or found["cached_tokens"] == 0
        if turn:
            assert f"going on with 2 messages of {tmp_path / 'talk'}" in err
            assert found["cached_tokens"] == 14 + 3  # the first turn, and its answer but for the end token
    assert main([*line[:-1], "--raw", "x"]) == 2
