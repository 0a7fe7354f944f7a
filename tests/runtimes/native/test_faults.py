"""What goes wrong in the native engine: memory and threads that are refused, rows that are not there, overflow."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import edge
from edge.bundle import Bundle
from edge.errors import NumericsError, OptionError
from edge.kv import plan_layout
from edge.options import RuntimeOptions
from edge.runtime import Batch, check_finite
from edge.session import Session
from runtimes import native
from tests.exporters.tiny import tiny_llama
from tests.runtimes import test_extremes as extremes
from tests.runtimes.native.kernel_sets import SETS
from tests.runtimes.native.tables import SLOTS, engine_of, pack

_native = pytest.importorskip("runtimes.native._native", reason="the native engine was not built here")
DIM = 16
NO_PARTS: list[int] = []


def make(
    steps: list[dict[str, Any]], buffers: list[tuple[int, str]], matrices: list[npt.NDArray[np.float32]],
    *, threads: int = 1, kernels: str = "", parts: list[int] = NO_PARTS,
) -> Any:  # fmt: skip
    """An engine over float32 matrices, the last in parts of so many rows, and a layer of one head of 16 numbers."""
    rows = [[len(matrix)] for matrix in matrices]
    if parts:
        rows[-1] = parts
    shapes = [("float32", 0, matrix.shape[1], sizes) for matrix, sizes in zip(matrices, rows, strict=True)]
    layer = {"ring": 0, "kv_heads": 1, "key_dim": DIM, "value_dim": DIM, "format": "float16"}
    engine = engine_of(steps, buffers, shapes, kernels=kernels, threads=threads, layers=[layer])
    for n, (matrix, sizes) in enumerate(zip(matrices, rows, strict=True)):
        for part, values in enumerate(np.split(matrix, np.cumsum(sizes)[:-1])):
            pack(engine, n, part, values)
    return engine


def embed(output: int) -> dict[str, Any]:
    return {"kind": "embed", "matrix": 0, "output": output, "scale": 1.0}


def forward(engine: Any, tokens: Sequence[int], wanted: Sequence[int], *, held: int = 0) -> npt.NDArray[np.float32]:
    logits = np.full((len(wanted), DIM), np.nan, np.float32)
    table, runs = np.array([[len(tokens), held, SLOTS, 0]]), [[np.array([[0, 0, held + len(tokens)]])]]
    engine.forward(np.array(tokens, np.int32), table, runs, [], np.array(wanted, np.int64), logits)
    return logits


def picker(*, wide: int = DIM, threads: int = 1) -> Any:
    """An engine whose logits are rows of a matrix, and its buffer 2 too; buffer 3 is of no use and that wide."""
    steps = [
        embed(1),
        {"kind": "select", "input": 1, "output": 2},
        {"kind": "select", "input": 1, "output": 0},
    ]
    rows = np.arange(4 * DIM, dtype=np.float32).reshape(4, DIM)
    return make(steps, [(DIM, "wanted"), (DIM, ""), (DIM, "wanted"), (wide, "")], [rows], threads=threads)


@pytest.mark.skipif(sys.platform == "win32", reason="memory that is only reserved cannot be mapped there")
def test_a_forward_that_memory_cannot_hold_leaves_the_engine_usable() -> None:
    engine = picker(wide=2**31 - 1)  # 8 GiB a row, never touched
    assert forward(engine, [1], [0])[0, 0] == DIM
    with pytest.raises(ValueError, match="larger than any memory"):
        forward(engine, [0] * 9000, [0])
    assert forward(engine, [3, 2], [1])[0, 0] == 2 * DIM


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("faults")
    return edge.export(tiny_llama(folder / "source"), folder / "tiny.dsedge")


def test_a_token_that_a_cast_would_wrap_is_refused(bundle: Bundle) -> None:
    runtime = native.open_model(bundle, plan_layout(bundle.spec, 8), RuntimeOptions(threads=1))
    segment = Session(runtime).segment([5])
    for token in (2**40 + 5, 2**32, -1):  # 32 bits of these are 5, 0 and no token
        with pytest.raises(OptionError, match=f"token {token} is outside the vocabulary"):
            runtime.forward(Batch((replace(segment, tokens=np.array([token])),)))
    runtime.close()


def test_without_memory_a_forward_is_an_option_error(bundle: Bundle) -> None:
    runtime = native.open_model(bundle, plan_layout(bundle.spec, 8), RuntimeOptions(threads=1))

    class Full:
        def forward(self, *_: Any) -> None:
            raise MemoryError

    engine, runtime._engine = runtime._engine, Full()  # type: ignore[assignment]
    session = Session(runtime)
    with pytest.raises(OptionError, match="not enough memory"):
        session.step([5])
    runtime._engine = engine
    assert np.isfinite(session.step([5])).all()
    runtime.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only there a limit of address space is kept")
def test_threads_that_cannot_start_are_done_without() -> None:
    """64 stacks do not fit in 100 MiB of address space; the threads that do start compute, and closing ends."""
    code = """
import resource
from tests.runtimes.native.test_faults import forward, picker
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (100 << 20), -1))
engine = picker(threads=64)
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
print(forward(engine, [1, 3], [1, 0])[:, 0].tolist())
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (found.returncode, found.stdout) == (0, "[48.0, 16.0]\n"), found.stderr


def test_keys_without_attention_keep_to_their_ring() -> None:
    steps = [
        embed(1),
        embed(2),
        {"kind": "kv_write", "keys": 1, "values": 2, "layer": 0, "rope": None},
        {"kind": "select", "input": 1, "output": 0},
    ]
    engine = make(steps, [(DIM, "wanted"), (DIM, ""), (DIM, "")], [np.ones((4, DIM), np.float32)])
    assert forward(engine, [0], [0], held=SLOTS - 1)[0, 0] == 1
    for tokens, held in (([0], SLOTS), ([0] * (SLOTS + 1), 0)):
        with pytest.raises(ValueError, match="of slots that are not there"):
            forward(engine, tokens, [0], held=held)


def test_reading_stops_at_the_rows_of_the_last_forward() -> None:
    engine = picker()
    forward(engine, [0] * 8, range(8))
    forward(engine, [1, 2, 3], [2, 1])
    for buffer, count, last in ((1, 3, 3), (2, 2, 2)):  # all rows; the wanted ones
        out = np.empty((count, DIM), np.float32)
        engine.read(buffer, out)
        assert out[-1, 0] == last * DIM
        with pytest.raises(ValueError, match="rows that the last forward had not"):
            engine.read(buffer, np.empty((count + 1, DIM), np.float32))


@pytest.mark.parametrize("first", [-1, 4, 2**63 - 1])
def test_rows_are_packed_where_the_run_has_them(first: int) -> None:
    """The largest number and one more would be below every bound, once it has gone round."""
    nothing = np.empty((1, 0), np.uint8)
    with pytest.raises(ValueError, match="rows that the run does not have"):
        picker().pack(0, 0, first, np.zeros((1, 4 * DIM), np.uint8), nothing, nothing)


def test_wanted_rows_are_as_few_as_a_phase_can_hold() -> None:
    with pytest.raises(ValueError, match="too many wanted rows"):
        forward(picker(), [0], [0] * 2**20)


@pytest.mark.parametrize("before", [0, 256], ids=["same-span", "own-span"])
@pytest.mark.parametrize("softcap", [0.0, 50.0])
@pytest.mark.parametrize("what", ["key", "negative key", "value"])
@pytest.mark.parametrize("kernels", SETS)
def test_o3_what_float16_cannot_hold_is_seen(kernels: str, what: str, softcap: float, before: int) -> None:
    """70,000 as a key or value of the last token, with small queries: an infinity could hide in a weight of 0."""
    steps = [
        embed(1),
        {"kind": "linear", "input": 1, "residual": None, "outputs": [2, 3, 4], "matrix": 1, "biases": [None] * 3},
        {"kind": "kv_write", "keys": 3, "values": 4, "layer": 0, "rope": None},
        {"kind": "attention", "queries": 2, "output": 5, "layer": 0, "heads": 1, "rope": None, "scale": 1.0,
         "softcap": softcap},
        {"kind": "select", "input": 5, "output": 0},
    ]  # fmt: skip
    rows = np.zeros((3, 3 * DIM), np.float32)
    rows[:, [0, DIM, 2 * DIM]] = 1e-5, 6e4, 1  # query, key, value
    rows[1, 2 * DIM if what == "value" else DIM] = -7e4 if what == "negative key" else 7e4
    rows[2, DIM] = 65519  # the largest that rounds to 65504
    buffers = [(DIM, "wanted"), (3 * DIM, ""), *[(DIM, "")] * 4]
    engine = make(steps, buffers, [rows, np.eye(3 * DIM, dtype=np.float32)], kernels=kernels, parts=[DIM] * 3)
    fine = [0] * (before or 2)
    check_finite(forward(engine, [*fine, 2], [len(fine)]), "native")
    with pytest.raises(NumericsError, match="not finite"):
        check_finite(forward(engine, [*fine, 1], [len(fine)]), "native")


@pytest.mark.parametrize("kernels", SETS)
@pytest.mark.parametrize("end", ["v_proj.bias", "k_proj.weight"])
def test_o3_what_float16_cannot_hold_is_an_error_and_not_token_0(
    end: str, kernels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys or values of more than 65,504: the native engine's float16 cache overflows, and says so."""
    monkeypatch.setenv(native.VARIABLE, kernels)
    _, made = extremes.export(tmp_path, {end: 3_000_000.0})
    ids = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]
    assert made.manifest.precision["native"]["kv"] == "float32"  # which the export found out
    assert np.isfinite(extremes.run(made, "native", ids, exact=False)).all()
    with pytest.raises(NumericsError, match="not finite"):
        extremes.run(Bundle(made.path, replace(made.manifest, precision={})), "native", ids, exact=False)
