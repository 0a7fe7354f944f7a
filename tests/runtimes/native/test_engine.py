"""The native runtime as a whole: the same bits however work is cut, numerics, closing, and hostile programs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edge
from edge.bundle import Bundle
from edge.errors import BundleError, ClosedError, OptionError
from edge.kv import Pools, plan_layout
from edge.options import RuntimeOptions
from edge.runtime import Batch, open_runtime
from edge.session import Session
from exporters.parity import compare
from exporters.reference import Reference
from runtimes import native
from runtimes.native import engine as engines
from runtimes.native import schema
from tests.exporters.tiny import tiny_llama, tiny_mistral
from tests.runtimes.native.kernel_sets import SETS
from tests.runtimes.native.tables import engine_of

_native = pytest.importorskip("runtimes.native._native", reason="the native engine was not built here")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("native")
    source = tiny_llama(folder / "source", hidden_size=96, num_attention_heads=6, num_key_value_heads=2, head_dim=24)
    (folder / "recipe.toml").write_text('[[rule]]\nmatch = "*"\nscheme = "int4-g32-affine"\n')
    return edge.export(source, folder / "tiny.dsedge", recipe=folder / "recipe.toml")


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("windowed")
    return edge.export(tiny_mistral(folder / "source", sliding_window=300), folder / "tiny.dsedge")


@pytest.fixture(autouse=True)
def _no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(native.VARIABLE, raising=False)


def random_ids(count: int, seed: int = 0) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(3, 300, count)]


def run(bundle: Bundle, ids: list[int], sizes: Iterator[int], **options: Any) -> np.ndarray[Any, Any]:
    """Logits of every token, fed in chunks of the given sizes."""
    layout = plan_layout(bundle.spec, len(ids), chunk=300)
    runtime = open_runtime(bundle, layout, RuntimeOptions(runtime="native", **options))
    session, found, done = Session(runtime), [], 0
    while done < len(ids):
        size = min(next(sizes), len(ids) - done)
        found.append(session.step(ids[done : done + size], "all"))
        done += size
    runtime.close()
    return np.concatenate(found)


def cycle(*sizes: int) -> Iterator[int]:
    while True:
        yield from sizes


@pytest.mark.parametrize("kernels", SETS)
def test_bits_do_not_depend_on_threads_or_chunks(kernels: str, bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """700 positions are three spans of attention, which decoding spreads over threads."""
    monkeypatch.setenv(native.VARIABLE, kernels)
    ids = random_ids(620)
    expected = run(bundle, ids, cycle(300), threads=1)
    for threads, sizes in ((3, (300,)), (1, (7, 64, 1)), (4, (255, 1, 1, 1, 2, 17))):
        assert np.array_equal(run(bundle, ids, cycle(*sizes), threads=threads), expected)


MIXED = """
[[rule]]
match = "*.attn.k"
scheme = "int8-g32-sym"
[[rule]]
match = "*.attn.v"
scheme = "float16"
[[rule]]
match = "*"
scheme = "int4-g32-sym"
"""


def test_a_lone_row_has_the_bits_of_a_chunk_where_several_linears_read_it(tmp_path: Path) -> None:
    """Queries, keys and values of three schemes are two linears, one of which reads codes and one floats."""
    (tmp_path / "recipe.toml").write_text(MIXED)
    source = tiny_llama(tmp_path / "source", hidden_size=96, num_attention_heads=6, num_key_value_heads=2, head_dim=24)
    mixed = edge.export(source, tmp_path / "mixed.dsedge", recipe=tmp_path / "recipe.toml")
    ids = random_ids(40)
    expected = run(mixed, ids, cycle(40), threads=1)
    assert np.array_equal(run(mixed, ids, cycle(1), threads=3), expected)


def test_hidden_states_of_a_lone_row_are_those_of_a_chunk(bundle: Bundle) -> None:
    """The final norm's row, which each thread makes for itself, is there for others too."""
    ids = random_ids(9)
    found = []
    for sizes in ((9,), (8, 1), (1,) * 9):
        runtime = open_runtime(bundle, plan_layout(bundle.spec, 20), RuntimeOptions(runtime="native", threads=3))
        session, done, rows = Session(runtime), 0, []
        for size in sizes:
            rows.append(session.step(ids[done : done + size], "hidden"))
            done += size
        runtime.close()
        found.append(np.concatenate(rows))
    assert np.array_equal(found[1], found[0])
    assert np.array_equal(found[2], found[0])


def test_bits_do_not_depend_on_sequences_that_share_a_block_of_rows(bundle: Bundle) -> None:
    """Three threads take 80 or so of 230 rows each; the second sequence begins within one's."""
    counts = (130, 100)
    layout = plan_layout(bundle.spec, 150, chunk=150, sequences=2)
    runtime = open_runtime(bundle, layout, RuntimeOptions(runtime="native", threads=3))
    ids = [random_ids(count, seed=count) for count in counts]
    pools = Pools(layout)
    segments = [Session(runtime, pools).segment(its, len(its)) for its in ids]
    found = runtime.forward(Batch(tuple(segments)))
    runtime.close()
    for mine, its_ids in zip(found, ids, strict=True):
        assert np.array_equal(mine, run(bundle, its_ids, cycle(30), threads=1))


def test_bits_do_not_depend_on_the_slots(windowed: Bundle) -> None:
    """A ring that went round holds the same positions elsewhere, in other pieces."""
    ids = random_ids(900)
    found = []
    for chunk in (300, 37):  # rings of ten and of six blocks
        layout = plan_layout(windowed.spec, 900, chunk=chunk)
        runtime = open_runtime(windowed, layout, RuntimeOptions(runtime="native", threads=2))
        session = Session(runtime)
        found.append(np.concatenate([session.step(ids[i : i + 37], "all") for i in range(0, 900, 37)]))
        runtime.close()
    assert np.array_equal(*found)


def test_bits_do_not_depend_on_other_segments(bundle: Bundle) -> None:
    layout = plan_layout(bundle.spec, 64, chunk=40, sequences=3)
    runtime = open_runtime(bundle, layout, RuntimeOptions(runtime="native", threads=2))
    prompts = [random_ids(count, seed=count) for count in (1, 9, 40)]
    pools = Pools(layout)
    sessions = [Session(runtime, pools) for _ in prompts]
    segments = [session.segment(ids, len(ids)) for ids, session in zip(prompts, sessions, strict=True)]
    together = runtime.forward(Batch(tuple(segments)))
    for segment, found in zip(segments, together, strict=True):
        assert np.array_equal(runtime.forward(Batch((segment,)))[0], found)
    runtime.close()


@pytest.mark.parametrize("kernels", SETS)
def test_quantized_activations_stay_close(kernels: str, bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native.VARIABLE, kernels)
    ids = random_ids(300)
    expected = Reference(bundle.graph, bundle.weights.read).run(ids)
    found = compare(expected, run(bundle, ids, cycle(300)))
    assert found.deviation > 1
    assert found.mean_kl < 0.05  # weights drawn this wide make the tiny model ten times as sensitive as a real one
    assert compare(expected, run(bundle, ids, cycle(300), exact=True)).max_diff < 1e-3


def test_an_unusable_kernel_set_is_an_error(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native.VARIABLE, "sse9")
    with pytest.raises(OptionError, match="DSEDGE_NATIVE_KERNELS is 'sse9'"):
        native.open_model(bundle, plan_layout(bundle.spec, 8), RuntimeOptions())


def test_support_names_the_kernel_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native.VARIABLE, "portable")
    assert native.support().reason == "kernels: portable"


def test_closing_waits_for_a_forward_that_runs(bundle: Bundle) -> None:
    runtime = native.open_model(bundle, plan_layout(bundle.spec, 400, chunk=400), RuntimeOptions(threads=2))
    session = Session(runtime)
    segment = session.segment(random_ids(400), 400)
    finished: list[str] = []
    entered = threading.Event()
    use = runtime._use

    def watched(call: Callable[[Any], None]) -> None:
        def running(engine: Any) -> None:
            entered.set()
            call(engine)
            finished.append("forward")

        use(running)

    runtime._use = watched  # type: ignore[method-assign]
    thread = threading.Thread(target=lambda: runtime.forward(Batch((segment,))))
    thread.start()
    entered.wait()
    runtime.close()
    finished.append("close")
    thread.join()
    assert finished == ["forward", "close"]
    with pytest.raises(ClosedError):
        runtime.forward(Batch((segment,)))


def test_a_token_outside_the_vocabulary_is_refused(bundle: Bundle) -> None:
    runtime = native.open_model(bundle, plan_layout(bundle.spec, 8), RuntimeOptions())
    session = Session(runtime)
    for token in (-1, 300):
        with pytest.raises(OptionError, match="outside the vocabulary"):
            session.step([token])
    runtime.close()


def entries_of(tables: dict[str, Any], names: Sequence[str]) -> list[dict[str, Any]]:
    """The entries of some tables; runs stand in the matrices."""
    runs = [run for matrix in tables["matrices"] for run in matrix["runs"]]
    return [entry for name in names for entry in (runs if name == "runs" else tables[name])]


def damaged(tables: dict[str, Any], names: Sequence[str], random: np.random.Generator) -> dict[str, Any]:
    """A copy in which one value of one entry is another one."""
    values = [
        -1,
        0,
        1,
        2,
        7,
        23,
        2**15,
        2**31 - 1,
        -(2**31),
        2**63 - 1,
        1e39,
        float("nan"),
        None,
        True,
        "int8",
        [0],
        {},
    ]
    copy = deepcopy(tables)
    entries = entries_of(copy, names)
    entry = entries[random.integers(len(entries))]
    entry[list(entry)[random.integers(len(entry))]] = values[random.integers(len(values))]
    return copy


@pytest.mark.parametrize("names", [["instructions"], ["buffers", "matrices", "runs"], ["ropes", "rings", "layers"]])
def test_hostile_programs_are_refused_or_harmless(
    names: list[str], bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value of a program changed at random: the engine refuses it, or runs it within its memory."""
    random = np.random.default_rng(len(names))
    made = _native.Engine
    refused = 0

    def change(tables: dict[str, Any], *others: Any) -> Any:
        return made(damaged(tables, names, random), *others)

    monkeypatch.setattr(_native, "Engine", change)
    for _ in range(90):
        try:
            runtime = native.open_model(bundle, plan_layout(bundle.spec, 8), RuntimeOptions(threads=2))
        except (BundleError, OptionError):
            refused += 1
            continue
        session = Session(runtime)
        segment = session.segment([5, 6], 2)
        logits = np.empty((2, bundle.spec.vocab_size), np.float32)
        with np.errstate(all="ignore"), suppress(ValueError):
            engine = runtime._engine
            runs = [[plan.runs for plan in segment.plan.rings]]
            table = np.array([[2, 0, *[0 for _ in segment.plan.rings]]])
            angles = [(np.ones((2, kind.dim // 2), np.float32),) * 2 for kind in bundle.spec.ropes]
            if engine is not None:
                engine.forward(segment.tokens, table, runs, angles, np.array([0, 1]), logits)
        runtime.close()
    assert refused > 30


def test_every_program_that_a_field_was_added_to_or_taken_from_is_refused(bundle: Bundle) -> None:
    """By the name of the record and of the field."""
    program = engines.build(bundle.graph, bundle.weights.runs, exact=False)
    layout = plan_layout(bundle.spec, 8)
    tables = {**program.tables(), **engines._kv_tables(bundle, layout, "float16")}
    vectors = [np.ones(len(bundle.weights.read(vector.name)), np.float32) for vector in program.vectors]
    _native.Engine(tables, vectors, "", 1)
    records = {
        "buffers": "buffer",
        "matrices": "matrix",
        "ropes": "rope",
        "rings": "ring",
        "layers": "layer",
        "runs": "run",
    }
    for table in (*tables, "runs"):
        for index in range(len(entries_of(tables, [table]))):
            copy = deepcopy(tables)
            entry = entries_of(copy, [table])[index]
            record = entry["kind"] if table == "instructions" else records.get(table, table)
            entry["spin"] = 1
            with pytest.raises(ValueError, match=f"{record} has an unknown field spin"):
                _native.Engine(copy, vectors, "", 1)
            name = list(entry)[-2]
            del entry["spin"], entry[name]
            with pytest.raises(ValueError, match=f"{record} lacks its field {name}"):
                _native.Engine(copy, vectors, "", 1)
    for changed, message in (
        ({**tables, "spins": []}, "there is no table spins"),
        ({name: tables[name] for name in tables if name != "rings"}, "the table rings is missing"),
        ({**tables, "instructions": [{"kind": "spin"}]}, "does not know the instruction spin"),
        ({**tables, "instructions": [{}]}, "an instruction without a kind"),
    ):
        with pytest.raises(ValueError, match=message):
            _native.Engine(changed, vectors, "", 1)


def test_an_extension_of_another_schema_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _native.schema() == schema.TEXT
    monkeypatch.setattr(_native, "schema", lambda: schema.TEXT.replace("crest", "peak"))
    assert native.support().devices == ()
    assert "install dsedge again" in native.support().reason


@pytest.mark.parametrize(
    "matrix",
    [
        ("int4-sym", 48, 64, [32]), ("int3-sym", 32, 64, [32]), ("", 32, 64, [32]), ("int8-zp", 32, 64, [32]),
        ("int8-sym", 64, 64, [32]), ("float16", 32, 64, [32]), ("int4-sym", 32, 0, [32]), ("int4-sym", 32, 2**62, [32]),
        ("int4-sym", 32, 64, []), ("int4-sym", 32, 64, [2**62]), ("int4-sym", 0, 64, [32]), ("int4-sym", -1, 64, [32]),
    ],
    ids=str,
)  # fmt: skip
def test_matrices_of_impossible_shapes_are_refused(matrix: Any) -> None:
    select = {"kind": "select", "input": 1, "output": 0}
    with pytest.raises(ValueError, match=r"scheme|columns|rows|format"):
        engine_of([select], [(4, "wanted"), (4, "")], [matrix])


def test_a_text_that_is_no_unicode_is_refused() -> None:
    select = {"kind": "select", "input": 1, "output": 0}
    for step in ({**select, "kind": "\ud800"}, {**select, "\ud800": 1}):
        with pytest.raises(ValueError, match="a text that is no Unicode"):
            engine_of([step], [(4, "wanted"), (4, "")], [])


def test_a_payload_that_shrank_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    copy = tmp_path / "copy.dsedge"
    copy.mkdir()
    for file in bundle.path.iterdir():
        if file.is_file():
            (copy / file.name).write_bytes(file.read_bytes())
    damaged = Bundle(copy, bundle.manifest)
    assert damaged.weights.shapes  # the header is read while the file is whole
    with open(damaged.weights.path, "r+b") as file:
        file.truncate(damaged.weights.path.stat().st_size // 2)
    with pytest.raises(BundleError, match="truncated"):
        native.open_model(damaged, plan_layout(bundle.spec, 8), RuntimeOptions())
