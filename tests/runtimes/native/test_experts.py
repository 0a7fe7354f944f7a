"""Mixtures of experts on the native engine: the router's rule, bits that depend on nothing else, hostile operands."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edge
from edge.bundle import Bundle
from edge.kv import plan_layout
from edge.ops import Router, Weight
from edge.options import RuntimeOptions
from edge.runtime import open_runtime, support
from edge.session import Session
from exporters.reference import experts
from exporters.reference.state import Step, WeightCache
from tests.exporters.tiny import tiny_olmoe
from tests.runtimes.native.tables import pack, tables

pytestmark = [
    pytest.mark.skipif(not support("native").devices, reason="the native engine was not built"),
    pytest.mark.usefixtures("cache"),
]
EXPERTS = 16


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSEDGE_CACHE", str(tmp_path / "cache"))


def routed(router: Router, logits: np.ndarray, bias: np.ndarray | None = None, **changes: Any) -> np.ndarray:
    """What the engine's router makes of some rows of logits: tokens pick them, and the result is the logits buffer."""
    from runtimes.native import _native

    rows, width = logits.shape
    step = {
        "kind": "router", "logits": 2, "output": 0, "bias": [None if bias is None else 0], "top_k": router.top_k,
        "sigmoid": int(router.score == "sigmoid"), "normalize": int(router.normalize), "scale": router.scale,
        "groups": router.groups, "top_groups": router.top_groups, "group_best": router.group_best, **changes,
    }  # fmt: skip
    steps = [
        {"kind": "embed", "output": 1, "matrix": 0, "scale": 1.0}, {"kind": "select", "input": 1, "output": 2}, step,
    ]  # fmt: skip
    made = tables(steps, [(width, "wanted"), (width, ""), (width, "wanted")], [("float32", 0, width, [rows])])
    engine = _native.Engine(made, [] if bias is None else [bias], "", 1)
    pack(engine, 0, 0, logits.view(np.uint8).reshape(rows, -1))
    ids, out = np.arange(rows, dtype=np.int32), np.full((rows, width), -1, np.float32)
    engine.forward(ids, np.array([[rows, 0]]), [[]], [], ids.astype(np.int64), out)
    return out


def expected(router: Router, logits: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    weights = WeightCache(lambda name, start, stop: bias, keep=True)
    return experts.route(Step(None, weights, None, {}, None, 0), router, [logits])  # type: ignore[arg-type]


ROUTERS = {
    "softmax": Router(3, "softmax", False, 1.0),
    "normalized": Router(2, "softmax", True, 1.0),
    "scaled sigmoid": Router(4, "sigmoid", True, 2.5),
    "groups by their best": Router(3, "softmax", False, 16.0, groups=4, top_groups=2),
    "groups by two": Router(4, "sigmoid", True, 2.5, groups=4, top_groups=2, group_best=2),
    "all": Router(EXPERTS, "softmax", False, 1.0),
}


@pytest.mark.parametrize("name", ROUTERS)
@pytest.mark.parametrize("biased", [False, True])
def test_routing_is_the_references(name: str, biased: bool) -> None:
    random = np.random.default_rng(0)
    logits = random.normal(0, 2, (50, EXPERTS)).astype(np.float32)
    bias = random.normal(0, 0.3, EXPERTS).astype(np.float32) if biased else None
    fields = {field: getattr(ROUTERS[name], field) for field in Router.__dataclass_fields__ if field != "kind"}
    router = Router(**{**fields, "bias": Weight("b", (EXPERTS,), "router") if biased else None})
    found, wanted = routed(router, logits, bias), expected(router, logits, bias)
    assert np.array_equal(found != 0, wanted != 0)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_the_lower_index_wins_among_equals() -> None:
    logits = np.zeros((1, EXPERTS), np.float32)
    logits[0, [3, 9]] = 1
    for router, chosen in ((ROUTERS["softmax"], [0, 3, 9]), (ROUTERS["groups by their best"], [0, 3, 9])):
        assert np.flatnonzero(routed(router, logits)[0]).tolist() == chosen
        assert np.flatnonzero(expected(router, logits)[0]).tolist() == chosen


def test_a_row_that_is_no_number_stays_one_and_hurts_no_other() -> None:
    logits = np.random.default_rng(0).normal(0, 1, (3, EXPERTS)).astype(np.float32)
    plain = routed(ROUTERS["softmax"], logits)
    logits[1, 5] = np.nan
    found = routed(ROUTERS["softmax"], logits)
    assert np.isnan(found[1]).all()
    assert np.array_equal(found[[0, 2]], plain[[0, 2]])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"top_k": 0}, "more chosen experts than compete"),
        ({"top_k": EXPERTS + 1}, "more chosen experts than compete"),
        ({"groups": 3}, "groups that experts cannot be cut into"),
        ({"groups": 0}, "groups that experts cannot be cut into"),
        ({"groups": 4, "top_groups": 5}, "groups that experts cannot be cut into"),
        ({"groups": 4, "group_best": 5}, "more best of a group"),
        ({"sigmoid": 2}, "a switch that is neither 0 nor 1"),
        ({"scale": float("nan")}, "scale"),
        ({"output": 2}, "an output that is its input"),
    ],
)
def test_hostile_routers_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        routed(ROUTERS["softmax"], np.zeros((2, EXPERTS), np.float32), **changes)


EXPERT_STEPS: list[dict[str, Any]] = [
    {"kind": "embed", "output": 1, "matrix": 0, "scale": 1.0},
    {"kind": "embed", "output": 2, "matrix": 1, "scale": 1.0},
    {"kind": "expert_gate", "input": 1, "routing": 2, "output": 3, "gate": 2, "up": 3, "top_k": 2, "activation": "silu",
     "crest": 0.0},
    {"kind": "expert_down", "input": 3, "routing": 2, "output": 4, "matrix": 4, "top_k": 2},
    {"kind": "select", "input": 4, "output": 0},
]  # fmt: skip


def expert_engine(**changes: Any) -> Any:
    """Four experts of 40 inner numbers over 64, as floats. `changes` are operands of instruction `at`."""
    from runtimes.native import _native

    steps = [dict(step) for step in EXPERT_STEPS]
    if changes:
        steps[changes.pop("at")].update(changes)
    buffers = [(64, "wanted"), (64, ""), (4, ""), (256, ""), (64, "")]
    matrices = [
        ("float32", 0, 64, [9]),
        ("float32", 0, 4, [9]),
        ("float32", 0, 64, [40] * 4),
        ("float32", 0, 64, [40] * 4),
        ("float32", 0, 40, [64] * 4),
    ]
    return _native.Engine(tables(steps, buffers, matrices), [], "", 2)


def test_a_row_that_chooses_more_than_it_may_stays_within_its_part() -> None:
    """Routing is data too: of four experts with a weight the first two count, and other rows are what they were."""
    random = np.random.default_rng(0)
    x, weights = random.normal(size=(9, 64)).astype(np.float32), random.normal(size=(2, 4, 40, 64)).astype(np.float32)
    downs, routing = random.normal(size=(4, 64, 40)).astype(np.float32), np.zeros((9, 4), np.float32)
    routing[np.arange(9), np.arange(9) % 4] = 0.5
    routing[4] = [0.1, 0.2, 0.3, 0.4]
    engine = expert_engine()
    for matrix, rows in ((0, x), (1, routing)):
        pack(engine, matrix, 0, rows.view(np.uint8).reshape(9, -1))
    for expert in range(4):
        for n, rows in enumerate((weights[0, expert], weights[1, expert], downs[expert])):
            pack(engine, 2 + n, expert, rows.view(np.uint8).reshape(len(rows), -1))
    ids, out = np.arange(9, dtype=np.int32), np.empty((9, 64), np.float32)
    engine.forward(ids, np.array([[9, 0]]), [[]], [], ids.astype(np.int64), out)
    counted = routing.copy()
    counted[4, 2:] = 0
    wanted = np.zeros((9, 64))
    for expert in range(4):
        gate, up = x @ weights[0, expert].T.astype(np.float64), x @ weights[1, expert].T.astype(np.float64)
        wanted += counted[:, expert, None] * ((gate / (1 + np.exp(-gate)) * up) @ downs[expert].T)
    np.testing.assert_allclose(out, wanted, rtol=2e-4, atol=2e-3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"at": 2, "top_k": 3}, "an output that does not fit"),
        ({"at": 2, "top_k": 5}, "more chosen experts than there are"),
        ({"at": 2, "gate": 4}, "does not fit its matrix"),
        ({"at": 2, "up": 0}, "another number of weights than experts"),
        ({"at": 2, "routing": 1}, "another number of weights than experts"),
        ({"at": 2, "output": 1}, "an output that"),
        ({"at": 2, "crest": -1.0}, "an output that does not fit"),
        ({"at": 3, "top_k": 1}, "an input that does not fit its matrix"),
        ({"at": 3, "matrix": 1}, "another number of weights than experts|does not fit its matrix"),
        ({"at": 3, "output": 2}, "an output that"),
    ],
)
def test_hostile_experts_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        expert_engine(**changes)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("experts")
    return edge.export(tiny_olmoe(folder / "source", intermediate_size=72), folder / "tiny.dsedge")


def run(bundle: Bundle, ids: list[int], sizes: tuple[int, ...], threads: int) -> np.ndarray:
    layout = plan_layout(bundle.spec, len(ids), chunk=300)
    runtime = open_runtime(bundle, layout, RuntimeOptions(runtime="native", threads=threads))
    session, found, done = Session(runtime), [], 0
    for size in cycle(sizes):
        found.append(session.step(ids[done : done + size], "all"))
        done += size
        if done >= len(ids):
            break
    runtime.close()
    return np.concatenate(found)


def test_bits_do_not_depend_on_threads_chunks_or_neighbours(bundle: Bundle) -> None:
    """A row alone reads its experts by itself; in a chunk it stands among the rows that chose the same one."""
    ids = [int(i) for i in np.random.default_rng(0).integers(3, 300, 310)]
    whole = run(bundle, ids, (300,), 1)
    for threads, sizes in ((3, (300,)), (1, (7, 64, 1)), (2, (255, 1, 1, 2, 17))):
        assert np.array_equal(run(bundle, ids, sizes, threads), whole)
