"""Latent attention in the native engine: bits, formats of the cache, other layers beside it, and hostile programs."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import edge
from edge.bundle import Bundle
from edge.decoder import DecoderSpec, RopeSpec
from edge.errors import NumericsError
from edge.graph import build
from edge.kv import plan_layout
from edge.layers import Gqa, Mla
from edge.options import RuntimeOptions
from edge.runtime import open_runtime
from edge.session import Session
from exporters.reference import Reference
from runtimes import native
from runtimes.native import builder
from runtimes.native.engine import NativeRuntime
from runtimes.native.program import KV_DTYPES
from tests.exporters.tiny import tiny_deepseek_v2, tiny_deepseek_v3
from tests.runtimes.native.kernel_sets import SETS
from tests.specs import runs_of, small_spec

_native = pytest.importorskip("runtimes.native._native", reason="the native engine was not built here")
DENSE = {"first_k_dense_replace": 3}
# Heads of whole groups, so that codes are multiplied; and heads that neither lines nor panels nor groups fit.
EVEN = {"qk_nope_head_dim": 32, "kv_lora_rank": 64, "v_head_dim": 32}
ODD = {"qk_nope_head_dim": 20, "kv_lora_rank": 40, "v_head_dim": 12}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    made = {}
    for name, tiny, sizes in (("even", tiny_deepseek_v2, EVEN), ("odd", tiny_deepseek_v3, ODD)):
        folder = tmp_path_factory.mktemp(name)
        made[name] = edge.export(tiny(folder / "source", **DENSE, **sizes), folder / "tiny.dsedge")
    return made


def random_ids(count: int) -> list[int]:
    return [int(i) for i in np.random.default_rng(0).integers(3, 300, count)]


def run(bundle: Any, ids: list[int], chunk: int, **options: Any) -> np.ndarray[Any, Any]:
    """Logits of every token, fed in chunks."""
    runtime = open_runtime(
        bundle, plan_layout(bundle.spec, len(ids), chunk=300), RuntimeOptions(runtime="native", **options)
    )
    session = Session(runtime)
    found = [session.step(ids[done : done + chunk], "all") for done in range(0, len(ids), chunk)]
    runtime.close()
    return np.concatenate(found)


@pytest.mark.parametrize("size", ["even", "odd"])
@pytest.mark.parametrize("kernels", SETS)
def test_bits_do_not_depend_on_threads_or_chunks(
    kernels: str, size: str, bundles: dict[str, Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three spans of attention, which decoding spreads over threads, and rows enough for bands."""
    monkeypatch.setenv(native.VARIABLE, kernels)
    ids = random_ids(560)
    expected = run(bundles[size], ids, 300, threads=1)
    for chunk, threads in ((1, 2), (7, 1), (300, 3)):
        assert np.array_equal(run(bundles[size], ids, chunk, threads=threads), expected), (chunk, threads)


@pytest.mark.parametrize("size", ["even", "odd"])
@pytest.mark.parametrize("kernels", SETS)
def test_every_kernel_set_equals_the_reference(
    kernels: str, size: str, bundles: dict[str, Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over 300 positions: a whole span, and a part of one. Caches of fewer bits come close in the mean."""
    monkeypatch.setenv(native.VARIABLE, kernels)
    ids = random_ids(300)
    expected = Reference(bundles[size].graph, bundles[size].weights.read).run(ids)
    found = {dtype: run(bundles[size], ids, 300, exact=True, kv_dtype=dtype) for dtype in KV_DTYPES}
    assert np.abs(found["float32"] - expected).max() < 1e-3
    assert 0 < np.abs(found["float16"] - expected).mean() < 0.01
    assert 0 < np.abs(found["int8"] - expected).mean() < 0.2


class Made:
    """Random weights of a spec, as a bundle has them for the engine."""

    def __init__(self, spec: DecoderSpec) -> None:
        random = np.random.default_rng(3)
        self.spec, self.graph, self.path = spec, build(spec), Path("made")
        self.manifest = SimpleNamespace(schemes={}, precision={})
        self.arrays = {
            weight.name: random.normal(1 if weight.role == "norm" else 0, 0.3, weight.stored).astype(np.float32)
            for weight in self.graph.weights
        }
        self.shapes = {name: array.shape for name, array in self.arrays.items()}
        self.schemes = dict.fromkeys(self.arrays)
        self.runs = runs_of(self.graph, "float32")

    @property
    def weights(self) -> Made:
        return self

    def read(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray[Any, Any]:
        return self.arrays[name][start:stop]

    tensor = read

    def size(self, name: str) -> int:
        return self.arrays[name].nbytes


MLA = Mla(3, None, 20, 12, 8, 16, 0.2, rope=1)


def mixed_spec() -> DecoderSpec:
    """Grouped heads, latents, and a window: three groups of layers, each with what it keeps."""
    spec = small_spec(
        windows=(None, None, 12), attention={"heads": 4, "kv_heads": 2, "head_dim": 16, "scale": 0.25},
        mlp={"size": 48}, vocab_size=300, hidden_size=32, ropes=(RopeSpec(16, 1e4), RopeSpec(8, 1e4)),
    )  # fmt: skip
    layers = [replace(layer, attention=MLA) if index == 1 else layer for index, layer in enumerate(spec.layers)]
    return replace(spec, layers=tuple(layers))


@pytest.mark.parametrize("chunk", [1, 9])
def test_layers_of_different_kinds_stand_side_by_side(chunk: int) -> None:
    made = Made(mixed_spec())
    ids = random_ids(70)
    layout = plan_layout(made.spec, 24, chunk=9, policy="sliding")
    runtime = NativeRuntime(made, layout, RuntimeOptions(exact=True, threads=2), "")  # type: ignore[arg-type]
    session = Session(runtime)
    found = np.concatenate([session.step(ids[done : done + chunk], "all") for done in range(0, 70, chunk)])

    def seen(ring: int, query: np.ndarray[Any, Any], key: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        distance = query[:, None] - key
        return (distance >= 0) & (distance < (made.spec.kv_groups[ring].window or 24))

    expected = Reference(made.graph, made.read, visible=seen).run(ids)
    assert np.abs(found - expected).max() < 1e-3 * expected.std()
    assert [type(layer.attention) for layer in made.spec.layers] == [Gqa, Mla, Gqa]


def test_a_token_takes_a_latent_and_a_rope_key() -> None:
    """576 numbers a layer at the sizes of DeepSeek-V2-Lite, of two bytes; up to a ring's last line."""
    attention = Mla(16, None, 512, 128, 64, 128, 0.1)
    spec = small_spec(attention={"head_dim": 64}, vocab_size=32, hidden_size=32)
    spec = replace(spec, layers=(replace(spec.layers[0], attention=attention),) * 2)
    made = Made(spec)
    options = RuntimeOptions(threads=1)
    sizes = [
        NativeRuntime(made, plan_layout(spec, context, chunk=16), options, "").kv_bytes  # type: ignore[arg-type]
        for context in (32, 1056)
    ]
    assert sizes[1] - sizes[0] == 1024 * 2 * 576 * 2


def test_matrices_of_heads_take_codes_where_groups_are_whole() -> None:
    """At V2's sizes both are read as stored, from codes of what they multiply; each head has panels of its own."""
    for attention, codes in ((Mla(16, None, 512, 128, 64, 128, 0.1, rope=1), True), (MLA, False)):
        spec = mixed_spec()
        spec = replace(spec, layers=(replace(spec.layers[0], attention=attention),),
                       ropes=(RopeSpec(16, 1e4), RopeSpec(attention.rope_dim, 1e4)))  # fmt: skip
        graph = build(spec)
        program = builder.build(graph, runs_of(graph, "int4-g32-sym"), exact=False)
        steps = [step for step in program.instructions if step.kind == "head_linear"]
        assert [program.buffers[step["input"]]["codes"] for step in steps] == [codes] * 2
        assert [step["matrix"].record()["rows"] for step in steps] == [
            [attention.latent_dim] * attention.heads, [attention.value_dim] * attention.heads,
        ]  # fmt: skip
        write, attend = (
            next(step for step in program.instructions if step.kind == kind)
            for kind in ("kv_write", "latent_attention")
        )
        assert (write["rope"], attend["rope"]) == (1, 1)  # rotations are left to what reads them
        assert program.instructions.index(attend) == program.instructions.index(write) + 1


def tables_of(made: Made) -> tuple[dict[str, Any], list[np.ndarray[Any, Any]]]:
    """What the engine is made of for a spec."""
    found: list[Any] = []

    class TakenError(Exception):
        pass

    def take(*arguments: Any) -> Any:
        found.extend(arguments)
        raise TakenError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_native, "Engine", take)
        with pytest.raises(TakenError):
            NativeRuntime(made, plan_layout(made.spec, 24, chunk=9), RuntimeOptions(exact=True), "")  # type: ignore[arg-type]
    return found[0], found[1]


def damages(step: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in step.items():
        if name != "kind":
            yield from ((name, wrong) for wrong in (-2, -1, 0, 1, 2, 5, 2**31, 2**62) if wrong != value)


@pytest.mark.parametrize("kind", ["latent_attention", "head_linear"])
def test_hostile_programs_are_refused_or_harmless(kind: str) -> None:
    """Each operand of each such instruction, one at a time: what still fits runs, within its memory."""
    tables, vectors = tables_of(Made(mixed_spec()))
    refused = 0
    places = [index for index, step in enumerate(tables["instructions"]) if step["kind"] == kind]
    for place in places:
        for name, value in damages(tables["instructions"][place]):
            copy = deepcopy(tables)
            copy["instructions"][place][name] = value
            try:
                engine = _native.Engine(copy, vectors, "", 2)
            except (ValueError, TypeError):
                refused += 1
                continue
            runs = [[np.array([[0, 0, 2]])] * 3]
            angles = [(np.ones((2, rope["pairs"]), np.float32),) * 2 for rope in tables["ropes"]]
            logits = np.empty((2, 300), np.float32)
            table = np.array([[2, 0, *[2, 0] * 3]])  # each of three rings has a window of 2 and no sinks
            engine.forward(np.array([5, 6], np.int32), table, runs, angles, np.arange(2), logits)
    assert refused > 10 * len(places)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("latent_attention", {"heads": 2}, "queries or an output that do not fit its layer"),
        ("latent_attention", {"layer": 0}, "a layer with more than one latent"),
        ("latent_attention", {"rope": 0}, "a rope of more pairs than its heads"),
        ("latent_attention", {"scale": 0.0}, "a scale that is not possible"),
        ("head_linear", {"matrix": 0}, "an input of another width than its heads"),
        ("head_linear", {"matrix": 1}, "heads of several sizes"),
        ("head_linear", {"output": 1}, "an output that does not fit"),
    ],
)
def test_a_program_that_does_not_fit_is_refused(kind: str, change: dict[str, Any], message: str) -> None:
    tables, vectors = tables_of(Made(mixed_spec()))
    step = next(step for step in tables["instructions"] if step["kind"] == kind)
    step.update(change)
    with pytest.raises(ValueError, match=rf"\({kind}\).*{message}"):
        _native.Engine(tables, vectors, "", 1)


def test_a_latent_that_float16_cannot_hold_is_an_error() -> None:
    """70,000 in a latent: the norm's weight makes it, and a cache of float32 would keep it."""
    made = Made(mixed_spec())
    made.arrays["layers.1.attn.latent_norm"][3] = 7e5
    layout = plan_layout(made.spec, 24, chunk=9)
    for dtype, fine in (("float16", False), ("float32", True)):
        runtime = NativeRuntime(made, layout, RuntimeOptions(exact=True, kv_dtype=dtype), "")  # type: ignore[arg-type]
        session = Session(runtime)
        if fine:
            assert np.isfinite(session.step([5, 6], "all")).all()
        else:
            with pytest.raises(NumericsError, match="not finite"):
                session.step([5, 6], "all")
