"""What every runtime must do, the same cases on each, against the reference and its rule of visibility."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edge
from edge import artefacts, coreml_interface, saving
from edge.bundle import Bundle
from edge.errors import (
    ClosedError,
    DeviceError,
    NumericsError,
    OptionError,
    PoolFullError,
    PromptTooLongError,
    UnsupportedError,
)
from edge.kv import BLOCK, KvLayout, Move, Pools, plan_layout
from edge.ops import Attention, Experts, LatentAttention, Rope, Router
from edge.options import RuntimeOptions
from edge.rope import inverse_frequencies
from edge.runtime import Batch, Runtime, open_runtime, support
from edge.session import Session
from exporters.reference import Reference, Visibility
from runtimes.scripted import write_bundle
from tests.edge.interrupts import interrupted_at
from tests.exporters import tiny
from tests.exporters.tiny import tiny_llama, tiny_mistral, tiny_qwen2

# Runtimes that compute logits. A new backend joins by a line here.
RUNTIMES = ("native", "onnx", "torch", "coreml-interpreter")
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.5,
    "short_factor": [1.0, 1.1, 1.2, 1.5], "long_factor": [1.0, 1.5, 3.0, 8.0],
}  # fmt: skip
MODELS: dict[str, tuple[Callable[..., Path], dict[str, Any]]] = {
    "llama": (tiny_llama, {}),
    "llama-tied": (tiny_llama, {"tie_word_embeddings": True}),
    "llama-narrow": (tiny_llama, {"hidden_size": 100, "intermediate_size": 90, "head_dim": 16}),  # padded groups
    "llama-bias": (tiny_llama, {"attention_bias": True, "mlp_bias": True}),
    "qwen2": (tiny_qwen2, {"hidden_size": 128, "num_attention_heads": 4, "head_dim": 32}),
    "mistral": (tiny_mistral, {"sliding_window": 8}),
    "llama-yarn": (tiny_llama, {"rope_parameters": YARN}),
    "llama-dynamic": (tiny_llama, {"rope_parameters": DYNAMIC, "max_position_embeddings": 32}),
    "qwen3": (tiny.tiny_qwen3, {}),
    "gemma": (tiny.tiny_gemma, {}),
    "gemma2": (tiny.tiny_gemma2, {}),
    "gemma3": (tiny.tiny_gemma3, {}),
    "phi3": (tiny.tiny_phi3, {"original_max_position_embeddings": 32, "rope_parameters": LONGROPE}),
    "smollm3": (tiny.tiny_smollm3, {"use_sliding_window": True, "sliding_window": 8}),
    "olmo2": (tiny.tiny_olmo2, {}),
    "olmo2-bias": (tiny.tiny_olmo2, {"attention_bias": True}),  # a norm of a sum that is no residual
    "olmo3": (tiny.tiny_olmo3, {}),
    "granite": (tiny.tiny_granite, {}),
    "deepseek-v2": (tiny.tiny_deepseek_v2, {}),
    "deepseek-v3": (tiny.tiny_deepseek_v3, {}),
    "qwen3-moe": (tiny.tiny_qwen3_moe, {}),
    "qwen3-moe-odd": (tiny.tiny_qwen3_moe, {"moe_intermediate_size": 72, "hidden_size": 100}),  # padded panels
    "olmoe": (tiny.tiny_olmoe, {}),
    "granitemoe": (tiny.tiny_granitemoe, {}),
}
# Ops that a runtime's artefact cannot hold: a bundle goes without the artefact then.
LACKS: dict[str, tuple[type[Any], ...]] = {
    "native": (), "onnx": (LatentAttention, Router, Experts), "torch": (), "coreml-interpreter": (),
}  # fmt: skip
WITHOUT_ONNX = ("deepseek", "qwen3-moe", "olmoe", "granitemoe")
COREML = importlib.util.find_spec("coremltools") is not None
# These run thousands of lines for a token: an interrupt comes at every so many-th.
STRIDES = {"coreml-interpreter": 409, "torch": 107}
# Models with rings of different lengths, or of the same length but another rope.
WINDOWED = ("mistral", "gemma2", "gemma3", "smollm3", "olmo3")
SCHEMES = ("int4-g32-sym", "int4-g64-zp", "int4-g32-affine", "float16", "float32")


def random_ids(count: int, seed: int = 0) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(3, 300, count)]


def export_tiny(folder: Path, model: str, scheme: str = "int4-g32-sym", head: str = "int8-g32-sym") -> Bundle:
    make, config = MODELS[model]
    recipe = folder / "recipe.toml"
    recipe.write_text(
        f'[[rule]]\nmatch = ["embed", "head"]\nscheme = "{head}"\n'
        f'[[rule]]\nmatch = "*.router"\nscheme = "float16"\n[[rule]]\nmatch = "*"\nscheme = "{scheme}"\n'
    )
    targets = (*([] if model.startswith(WITHOUT_ONNX) else ["onnx"]), *(["coreml"] if COREML else []))
    wanted: dict[str, Any] = {"contexts": (128, 4096)} if COREML else {}
    return edge.export(
        make(folder / "source", **config), folder / "tiny.dsedge", recipe=recipe, targets=targets, **wanted
    )


class Bundles(dict[str, Bundle]):
    """Bundles by model, each exported when a test first asks for it."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders = folders

    def __missing__(self, model: str) -> Bundle:
        self[model] = export_tiny(self._folders.mktemp(model), model)
        return self[model]


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    return Bundles(tmp_path_factory)


Export = Callable[[str, str, str], Bundle]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Export:
    """A bundle of a model in a scheme and another one of embedding and head; exported once for all runtimes."""
    return lru_cache(maxsize=None)(
        lambda model, scheme, head: export_tiny(tmp_path_factory.mktemp(model), model, scheme, head)
    )


class Opened:
    """A runtime on a bundle, with the session and the reference to compare it with."""

    def __init__(self, runtime: Runtime, bundle: Bundle) -> None:
        self.runtime = runtime
        self.session = Session(runtime)
        self.bundle = bundle

    def reference(self, visible: Visibility | None = None) -> Reference:
        context = self.runtime.layout.context
        # A package rounds the offsets of affine groups: its reference has the weights that it holds.
        own = self.runtime.name == "coreml-interpreter"
        read = artefacts.find("coreml").weights(self.bundle) if own else self.bundle.weights.read
        return Reference(self.bundle.graph, read, visible=visible, context=context)

    def run(self, ids: list[int], chunk: int) -> np.ndarray[Any, Any]:
        """Logits of every token, fed in chunks of at most `chunk`."""
        found = []
        while ids:
            count = min(chunk, self.session.cache.room(len(ids)))
            found.append(self.session.step(ids[:count], "all"))
            ids = ids[count:]
        return np.concatenate(found)


Open = Callable[..., Opened]


def skip_unless_usable(name: str) -> None:
    """A backend that was not built or installed here is tested where it was."""
    if not support(name).devices:
        pytest.skip(f"{name}: {support(name).reason}")
    if name == "coreml-interpreter" and not COREML:
        pytest.skip("without coremltools there is no package")


@pytest.fixture(params=RUNTIMES)
def opened(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Opens bundles on the runtime under test with float activations, and closes them."""
    skip_unless_usable(request.param)
    runtimes: list[Runtime] = []

    def make(bundle: Bundle, context: int = 64, **options: Any) -> Opened:
        layout = plan_layout(bundle.spec, context, **options)
        wanted = RuntimeOptions(runtime=request.param, exact=True)
        if any(isinstance(op.attrs, LACKS[request.param]) for op in bundle.graph.ops):
            with pytest.raises(UnsupportedError, match="holds no ONNX graph"):
                open_runtime(bundle, layout, wanted)
            pytest.skip(f"{request.param} has no such op")
        runtimes.append(open_runtime(bundle, layout, wanted))
        return Opened(runtimes[-1], bundle)

    yield make
    for runtime in runtimes:
        runtime.close()


def close(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> bool:
    """Within 1e-3, as the issue of a backend demands, on logits with a standard deviation over 1."""
    assert expected.std() > 1
    return bool(np.abs(found - expected).max() < 1e-3)


@pytest.mark.parametrize("model", MODELS)
def test_logits_equal_the_reference(model: str, bundles: dict[str, Bundle], opened: Open) -> None:
    ids = random_ids(40)
    run = opened(bundles[model], chunk=40)
    assert close(run.run(ids, 40), run.reference().run(ids))


@pytest.mark.parametrize("model", ["llama", "deepseek-v3", *WINDOWED])
@pytest.mark.parametrize("chunk", [1, 3, 16])
def test_k1_prefill_in_chunks_equals_prefill_at_once(
    model: str, chunk: int, bundles: dict[str, Bundle], opened: Open
) -> None:
    ids = random_ids(40)
    run = opened(bundles[model], chunk=16)
    assert close(run.run(ids, chunk), run.reference().run(ids))


@pytest.mark.parametrize("head", ["int8-g32-sym", "int4-g32-sym", "int4-g64-zp", "int4-g128-affine", "float16"])
def test_embedding_and_head_in_every_scheme(head: str, exported: Export, opened: Open) -> None:
    run = opened(exported("llama-tied", "int4-g32-sym", head))
    ids = random_ids(20)
    assert close(run.run(ids, 20), run.reference().run(ids))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("model", ["llama-bias", "llama-narrow", "gemma3", "olmo2-bias", "phi3", "deepseek-v2"])
def test_linears_in_every_scheme(model: str, scheme: str, exported: Export, opened: Open) -> None:
    run = opened(exported(model, scheme, "int8-g32-sym"))
    ids = random_ids(20)
    assert close(run.run(ids, 20), run.reference().run(ids))


@pytest.mark.parametrize("model", ["llama", "deepseek-v2"])
@pytest.mark.parametrize("chunk", [1, 5, 16])
def test_three_times_the_capacity_through_a_sliding_ring(
    model: str, chunk: int, bundles: dict[str, Bundle], opened: Open
) -> None:
    ids = random_ids(96)
    run = opened(bundles[model], context=32, policy="sliding", chunk=16)
    found = run.run(ids, chunk)

    def band(ring: int, query: np.ndarray[Any, Any], key: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        distance = query[:, None] - key
        return (distance >= 0) & (distance < 32)

    assert run.session.dropped == 64
    assert close(found, run.reference(band).run(ids))


@pytest.mark.parametrize("count", [15, 16, 17, 32, 33])
def test_k2_window_boundary(count: int, bundles: dict[str, Bundle], opened: Open) -> None:
    """The model's own window of 8, at and around full turns."""
    ids = random_ids(count)
    run = opened(bundles["mistral"], context=64, chunk=4)
    assert close(run.run(ids, 4), run.reference().run(ids))


def test_layers_with_a_window_take_no_memory_for_the_context(bundles: dict[str, Bundle], opened: Open) -> None:
    """Of Gemma 3's three layers one sees everything: only its keys and values grow with the context."""
    sizes = [opened(bundles["gemma3"], context=context, chunk=16).runtime.kv_bytes for context in (256, 4096)]
    kv = bundles["gemma3"].spec.kv_groups[0]
    bytes_a_number = (sizes[1] - sizes[0]) / ((4096 - 256) * kv.kv_heads * (kv.key_dim + kv.value_dim))
    assert 0.5 < bytes_a_number <= 4.1


@pytest.mark.parametrize("model", ["llama", "llama-yarn", "phi3", "deepseek-v3"])
@pytest.mark.parametrize("chunk", [1, 4, 10])
def test_k6_n11_sinks_turn_with_the_window(model: str, chunk: int, bundles: dict[str, Bundle], opened: Open) -> None:
    """Yarn and longrope multiply what they rotate, once: not again where a sink key is rotated. Phi-3 rotates half."""
    sinks, slots = 2, 12
    ids = random_ids(150)
    run = opened(bundles[model], context=slots, policy="sliding", chunk=chunk, sinks=sinks)
    assert close(run.run(ids, chunk), slow_sinks(run.bundle, ids, slots, sinks))


def test_n11_prefill_behind_the_window_goes_in_chunks(bundles: dict[str, Bundle], opened: Open) -> None:
    """A chunk ends where the sinks move, at every 64th position behind the window, and not at every token."""
    run = opened(bundles["llama"], context=128, policy="sliding", chunk=64, sinks=4)
    counts: list[int] = []
    forward = run.runtime.forward

    def counting(batch: Batch) -> Any:
        counts.append(len(batch.segments[0].tokens))
        return forward(batch)

    run.runtime.forward = counting  # type: ignore[method-assign]
    ids = random_ids(350)
    found = run.session.feed(ids)
    assert counts == [59, 59, 58, 15, 64, 64, 31]  # the sinks move at 191, 255 and 319
    assert found is not None
    assert np.abs(found - slow_sinks(run.bundle, ids, 128, 4)[-1]).max() < 1e-3


def slow_sinks(bundle: Bundle, ids: list[int], slots: int, sinks: int) -> np.ndarray[Any, Any]:
    """The sink rule by brute force: for each query, keys are turned to the positions that the rule gives them."""
    window = slots - sinks

    class Slow(Reference):
        def _evaluate(self, op: Any, inputs: list[Any], positions: Any) -> Any:
            attrs = op.attrs
            if isinstance(attrs, Rope):
                return inputs[0]  # turned inside attention instead, where the distance is known
            if isinstance(attrs, LatentAttention):
                q, k, v = expanded(bundle, attrs, inputs)
            elif isinstance(attrs, Attention):
                q, k, v = (x.reshape(len(x), -1, attrs.dim) for x in inputs)
            else:
                return super()._evaluate(op, inputs, positions)
            rope = self.graph.spec.ropes[0]
            out = np.zeros((len(q), attrs.heads, v.shape[-1]), np.float32)
            for i in range(len(q)):
                oldest = max(0, i - window + 1)
                recent = [j for j in range(oldest, i + 1) if j >= sinks]
                first = [j for j in range(sinks) if j <= i]
                moved = max(0, oldest - sinks) // 64 * 64
                at = {j: j for j in recent} | {j: j + moved for j in first}
                order = sorted(at)
                turned_q = turn(rope, q[i : i + 1], [i])[0]
                turned_k = turn(rope, k[order], [at[j] for j in order])
                for head in range(attrs.heads):
                    kv = head * k.shape[1] // attrs.heads
                    scores = turned_k[:, kv] @ turned_q[head] * attrs.scale
                    weights = np.exp(scores - scores.max())
                    out[i, head] = (weights / weights.sum()) @ v[order, kv]
            return out.reshape(len(q), -1)

    return Slow(bundle.graph, bundle.weights.read).run(ids)


def expanded(bundle: Bundle, attrs: LatentAttention, inputs: list[Any]) -> tuple[np.ndarray[Any, Any], ...]:
    """Queries, keys and values of each head of latent attention, [tokens, heads, dim]; what is turned comes first."""
    count, heads = len(inputs[0]), attrs.heads
    q_nope, q_rope = (x.reshape(count, heads, -1) for x in inputs[:2])
    key_up, value_up = (
        bundle.weights.read(weight.name).reshape(weight.shape) for weight in (attrs.key_up, attrs.value_up)
    )
    keys = np.einsum("tl,hln->thn", inputs[2], key_up)
    shared = np.broadcast_to(inputs[3][:, None], (count, heads, attrs.rope_dim))
    values = np.einsum("tl,hvl->thv", inputs[2], value_up)
    return np.concatenate([q_rope, q_nope], -1), np.concatenate([shared, keys], -1), values


def turn(rope: Any, x: np.ndarray[Any, Any], positions: list[int]) -> np.ndarray[Any, Any]:
    """Rotary embedding written with complex numbers. x [rows, heads, dim]."""
    half = rope.dim // 2
    phase = np.exp(1j * np.outer(positions, inverse_frequencies(rope)))[:, None] * rope.attention_factor
    pairs = (x[..., :half] + 1j * x[..., half : rope.dim]) * phase
    return np.concatenate([pairs.real, pairs.imag, x[..., rope.dim :]], -1)


@pytest.mark.parametrize("model", ["llama", "deepseek-v3"])
@pytest.mark.parametrize("context", [16, 256])
def test_k4_rewind_gives_the_tokens_of_a_cold_run(
    context: int, model: str, bundles: dict[str, Bundle], opened: Open
) -> None:
    first = random_ids(240)
    second = first[:120] + random_ids(12, seed=1)
    run = opened(bundles[model], context=context, policy="sliding", chunk=8)
    run.session.feed(first)
    assert run.session.align(second) == (120 if context == 256 else 0)  # two blocks no longer hold what it would see
    warm = run.session.feed(second[len(run.session.tokens) :])
    cold_run = opened(bundles[model], context=context, policy="sliding", chunk=8)
    cold = cold_run.session.feed(second)
    assert warm is not None
    assert cold is not None
    assert np.abs(warm - cold).max() < 1e-3
    assert run.session.align(second) == len(second) - 1  # an exact hit runs the last token again
    again = run.session.feed(second[-1:])
    assert again is not None
    assert np.abs(again - cold).max() < 1e-3


@pytest.mark.parametrize("sinks", [0, 4])
def test_n29_an_interrupt_at_any_line_damages_no_later_answer(
    sinks: int, bundles: dict[str, Bundle], opened: Open
) -> None:
    """The ring has gone round and the sinks move: each line of session, bookkeeping and backend is tried."""
    run = opened(bundles["llama"], context=16, policy="sliding", chunk=8, sinks=sinks, sequences=2)
    ids = random_ids(84)
    cold = run.session.feed(ids)
    assert cold is not None
    before = Session(run.runtime, run.session.pools)
    before.feed(ids[:77])
    run.session.close()
    more, line = True, 0
    while more:
        line += STRIDES.get(run.runtime.name, 1)
        session = before.fork()
        more = interrupted_at(line, partial(session.feed, ids[77:]))
        found = session.feed(ids[session.align(ids) :])
        assert found is not None
        assert np.abs(found - cold).max() < 1e-3, line
        session.close()
    assert line > 50


def test_a_draft_that_is_not_committed_leaves_no_trace(bundles: dict[str, Bundle], opened: Open) -> None:
    ids = random_ids(40)
    run = opened(bundles["llama"], context=16, policy="sliding", chunk=8)
    run.run(ids, 8)
    draft = run.session.segment(random_ids(4, seed=3), 4)
    run.runtime.forward(Batch((draft,)))
    expected = opened(bundles["llama"], context=16, policy="sliding", chunk=8)
    expected.run(ids, 8)
    more = random_ids(3, seed=2)
    assert np.array_equal(run.run(more, 3), expected.run(more, 3))


def test_forks_go_their_own_ways(bundles: dict[str, Bundle], opened: Open) -> None:
    ids = random_ids(20)
    run = opened(bundles["llama"], chunk=8, sequences=2)
    run.run(ids, 8)
    other = run.session.fork()
    assert other.tokens == ids
    left, right = random_ids(5, seed=1), random_ids(5, seed=2)
    found_left = run.run(left, 5)
    found_right = other.step(right, "all")
    assert (run.session.tokens, other.tokens) == (ids + left, ids + right)
    reference = run.reference()
    assert close(found_left, reference.run(ids + left)[20:])
    reference.reset()
    assert close(found_right, reference.run(ids + right)[20:])
    if run.runtime.capabilities.extents:
        with pytest.raises(PoolFullError, match="all 2 sequences of the runtime are in use"):
            run.session.fork()


@pytest.mark.parametrize("model", ["llama", "deepseek-v2"])
def test_fork_of_a_ring_with_sinks_that_went_round(model: str, bundles: dict[str, Bundle], opened: Open) -> None:
    """The copy's sinks stand where the original's do, and turn on from there on their own."""
    ids = random_ids(145)
    run = opened(bundles[model], context=12, policy="sliding", chunk=4, sinks=2, sequences=2)
    run.run(ids[:130], 4)
    other = run.session.fork()
    whole = slow_sinks(run.bundle, ids, 12, 2)
    assert close(run.run(ids[130:133], 1), whole[130:133])
    assert close(np.concatenate([other.step([token], "all") for token in ids[130:]]), whole[130:])


@pytest.mark.parametrize("model", ["llama", "deepseek-v2"])
def test_k10_segments_of_one_forward_do_not_see_each_other(
    model: str, bundles: dict[str, Bundle], opened: Open
) -> None:
    run = opened(bundles[model], chunk=16, sequences=2)
    sessions = [run.session, Session(run.runtime, run.session.pools)]
    prompts = [random_ids(3), random_ids(9, seed=1)]
    segments = [session.segment(ids, rows) for session, ids, rows in zip(sessions, prompts, (1, 2), strict=True)]
    first, second = run.runtime.forward(Batch(tuple(segments)))
    assert np.abs(first - run.reference().run(prompts[0])[-1:]).max() < 1e-3
    assert np.abs(second - run.reference().run(prompts[1])[-2:]).max() < 1e-3


@pytest.mark.parametrize(
    ("want", "shape"), [("none", (0, 300)), ("last", (300,)), ("all", (7, 300)), ("hidden", (7, 64))]
)
def test_wants(want: Any, shape: tuple[int, ...], bundles: dict[str, Bundle], opened: Open) -> None:
    run = opened(bundles["llama"])
    ids = random_ids(7)
    found = run.session.step(ids, want)
    assert found.shape == shape
    values: dict[str, Any] = {}
    logits = run.reference().run(ids, observe=lambda op, value: values.update({op.output: value}))
    expected = {"none": logits[:0], "last": logits[-1], "all": logits, "hidden": values["/norm"]}[want]
    assert np.abs(found - expected).max(initial=0) < 1e-3
    more = random_ids(3, seed=1)
    assert np.abs(run.session.step(more) - run.reference().run(ids + more)[-1]).max() < 1e-3


def test_a_want_that_is_not_offered_is_refused(bundles: dict[str, Bundle], opened: Open) -> None:
    run = opened(bundles["llama"])
    with pytest.raises(OptionError, match="probabilities"):
        run.session.step([5], "probabilities")  # type: ignore[arg-type]
    assert run.session.tokens == []


def test_results_stay_as_they_were(bundles: dict[str, Bundle], opened: Open) -> None:
    """A result is the caller's: the next forward does not write into it."""
    run = opened(bundles["llama"])
    first = run.session.step(random_ids(5), "all")
    kept = first.copy()
    run.session.step(random_ids(5, seed=1), "all")
    assert np.array_equal(first, kept)


def test_closed_runtime_raises_and_closes_twice(bundles: dict[str, Bundle], opened: Open) -> None:
    run = opened(bundles["llama"])
    run.session.step([5])
    run.runtime.close()
    run.runtime.close()
    with pytest.raises(ClosedError):
        run.session.step([5])
    with pytest.raises(ClosedError):
        run.runtime.move(Move(0, 0, BLOCK, 1))


def test_nan_logits_raise(tmp_path: Path, opened: Open) -> None:
    bundle = export_tiny(tmp_path, "llama", "float32", "float32")
    info, kept = bundle.weights.info("norm"), bundle.weights.read("norm").tobytes()
    with open(bundle.weights.path, "r+b") as file:
        file.seek(info.start)
        file.write(np.full(1, np.nan, np.float32).tobytes())
    _spoil(bundle.path / coreml_interface.BLOBS, kept)
    with pytest.raises(NumericsError, match="not finite"):
        opened(bundle).session.step([5])


def _spoil(path: Path, vector: bytes) -> None:
    """Put a NaN into the copy of a vector that a package has."""
    if path.exists():
        data = path.read_bytes()
        assert data.count(vector) == 1
        path.write_bytes(data.replace(vector, np.full(1, np.nan, np.float32).tobytes() + vector[4:]))


@pytest.mark.parametrize("name", [*RUNTIMES, "scripted"])
def test_a_missing_device_is_an_error_that_names_what_is_there(
    name: str, bundles: dict[str, Bundle], tmp_path: Path
) -> None:
    skip_unless_usable(name)
    bundle = write_bundle(tmp_path / "fake.dsedge", ["x"]) if name == "scripted" else bundles["llama"]
    layout: KvLayout = plan_layout(bundle.spec, 8)
    with pytest.raises(DeviceError, match=r"npu.*here are: .*cpu"):
        open_runtime(bundle, layout, RuntimeOptions(runtime=name, device="npu"))


def test_an_unknown_runtime_lists_the_known(bundles: dict[str, Bundle]) -> None:
    bundle = bundles["llama"]
    with pytest.raises(OptionError, match=r"known are auto, .*onnx"):
        open_runtime(bundle, plan_layout(bundle.spec, 8), replace(RuntimeOptions(), runtime="vulkan"))


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory as Linux tells it")
def test_sequences_reserve_address_space_and_no_memory(bundles: dict[str, Bundle], opened: Open) -> None:
    """A sequence takes memory as its tokens come."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    opened(bundles["llama"], context=128, chunk=16)
    before = resident()
    run = opened(bundles["llama"], context=128, chunk=16, sequences=20_000)
    assert run.runtime.kv_bytes > 500_000_000
    assert resident() - before < 50_000_000
    session = run.session
    ids = random_ids(40)
    assert np.abs(session.feed(ids) - run.reference().run(ids)[-1]).max() < 1e-3


@pytest.mark.parametrize("model", ["llama", "mistral", "deepseek-v3"])
@pytest.mark.parametrize("count", [1, 7, 8, 11, 130])
def test_k9_a_saved_sequence_goes_on(
    model: str, count: int, bundles: dict[str, Bundle], opened: Open, tmp_path: Path
) -> None:
    """Around a window of 8, and behind the context with sinks that moved: in slots of another runtime.

    Where a backend adds up by slots and not by positions, other slots round the sums otherwise.
    """
    bundle = bundles[model]
    sliding = {"context": 32, "policy": "sliding", "sinks": 3, "chunk": 16, "sequences": 2}
    run, other = (opened(bundle, **sliding) for _ in range(2))
    run.session.feed(random_ids(count))
    saving.save(tmp_path / "s", bundle, run.session)
    other.session.feed(random_ids(20, seed=9))  # so that the slots are others
    found = saving.load(tmp_path / "s", bundle, other.runtime, other.session.pools)
    assert found.exact
    more = random_ids(70, seed=1)
    tolerance = 1e-4 if run.runtime.capabilities.extents else 0
    for part in (more[:1], more[1:]):
        assert np.abs(run.session.feed(part) - found.session.feed(part)).max() <= tolerance


def test_k9_a_sequence_goes_on_in_another_backend(bundles: dict[str, Bundle], tmp_path: Path) -> None:
    bundle, ids = bundles["llama"], random_ids(60)
    layout = plan_layout(bundle.spec, 64, chunk=16)
    for name in RUNTIMES:
        skip_unless_usable(name)
    runtimes = [open_runtime(bundle, layout, RuntimeOptions(runtime=name, exact=True)) for name in RUNTIMES]
    for here, there in permutations(runtimes, 2):
        session = Session(here)
        session.feed(ids[:40])
        path = tmp_path / f"{here.name}-{there.name}"
        saving.save(path, bundle, session)
        found = saving.load(path, bundle, there, Pools(layout, extents=there.capabilities.extents))
        assert not found.exact
        expected, got = session.feed(ids[40:]), found.session.feed(ids[40:])
        assert expected is not None
        assert got is not None
        assert np.abs(expected - got).max() < 1e-3
    for runtime in runtimes:
        runtime.close()


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_k9_narrower_keys_and_values_are_saved_exactly(dtype: Any, bundles: dict[str, Bundle], tmp_path: Path) -> None:
    skip_unless_usable("native")
    bundle, ids = bundles["llama"], random_ids(60)
    layout = plan_layout(bundle.spec, 64, chunk=16)
    first, second = (open_runtime(bundle, layout, RuntimeOptions(runtime="native", kv_dtype=dtype)) for _ in range(2))
    session = Session(first)
    session.feed(ids[:40])
    size = saving.save(tmp_path / "s", bundle, session)
    found = saving.load(tmp_path / "s", bundle, second, Pools(layout))
    assert found.exact
    assert np.array_equal(session.feed(ids[40:]), found.session.feed(ids[40:]))
    kv = bundle.spec.kv_groups[0]
    numbers = 40 * len(bundle.spec.layers) * kv.kv_heads * (kv.key_dim + kv.value_dim)
    assert size < numbers * (2 if dtype == "float16" else 4) + 4096
    first.close()
    second.close()


@pytest.mark.parametrize("model", ["llama", "gemma2", "deepseek-v2"])
@pytest.mark.parametrize(("dtype", "threads"), [("auto", 1), ("float16", 2), ("int8", 2)])
def test_attention_is_told_as_the_reference_has_it(
    model: str, dtype: Any, threads: int, bundles: dict[str, Bundle]
) -> None:
    """Of every query to every row, over the heads and layers of a ring, in prompts and for a lone token."""
    skip_unless_usable("native")
    bundle, ids = bundles[model], random_ids(330)
    layout = plan_layout(bundle.spec, 400, chunk=300)
    options = RuntimeOptions(runtime="native", exact=True, kv_dtype=dtype, threads=threads)
    runtime = open_runtime(bundle, layout, options)
    session = Session(runtime)
    found = [np.zeros((330, 330), np.float32) for _ in layout.rings]
    for start, stop in ((0, 280), (280, 329), (329, 330)):
        segment = session.segment(ids[start:stop])
        rings = tuple(
            replace(ring, attention=np.zeros((stop - start, len(ring.unrolled()[0])), np.float32))
            for ring in segment.plan.rings
        )
        runtime.forward(Batch((replace(segment, plan=replace(segment.plan, rings=rings)),)))
        session.commit(ids[start:stop])
        for ring, told in zip(rings, found, strict=True):
            assert ring.attention is not None
            told[start:stop, ring.unrolled()[0]] = ring.attention
    expected = [np.zeros((330, 330), np.float32) for _ in layout.rings]

    def add(layer: int, paid: np.ndarray[Any, Any]) -> None:
        expected[bundle.spec.layer_groups[layer]] += paid

    Reference(bundle.graph, bundle.weights.read, context=400).run(ids, attention=add)
    heads = [0] * len(layout.rings)
    for layer, group in zip(bundle.spec.layers, bundle.spec.layer_groups, strict=True):
        heads[group] += layer.attention.heads
    for told, wanted, each in zip(found, expected, heads, strict=True):
        assert np.abs(told.sum(axis=1) - each).max() < 1e-3
        assert np.abs(told - wanted).max() < {"auto": 1e-3, "float16": 0.05, "int8": 0.3}[dtype]
    runtime.close()


def test_evict_on_a_backend_sees_what_it_kept(bundles: dict[str, Bundle]) -> None:
    """Logits are the reference's for a query that sees what the plans hold, wherever rows were moved to."""
    skip_unless_usable("native")
    bundle, ids = bundles["llama"], random_ids(600)
    layout = plan_layout(bundle.spec, 256, chunk=64, sinks=4, policy="evict")
    found = []
    for chunk in (64, 9):
        runtime = open_runtime(bundle, layout, RuntimeOptions(runtime="native", exact=True, threads=2))
        session = Session(runtime)
        seen, logits = np.zeros((600, 600), np.bool_), []
        while len(session.tokens) < 600:
            start = len(session.tokens)
            stop = min(start + session.cache.room(chunk), 600)
            segment = session.segment(ids[start:stop], stop - start)
            (plan,) = segment.plan.rings
            seen[start:stop, plan.unrolled()[0]] = plan.mask(plan.unrolled()[0])
            logits.append(runtime.forward(Batch((segment,)))[0])
            session.commit(ids[start:stop])
        assert session.dropped == 600 - seen[-1].sum() >= 600 - 256
        assert seen[-1, :4].all()
        found.append((seen, np.concatenate(logits)))
        runtime.close()
    visible = found[0][0]
    whole = Reference(bundle.graph, bundle.weights.read, visible=lambda _, query, key: visible[np.ix_(query, key)])
    assert close(found[0][1], whole.run(ids))
    assert np.array_equal(found[0][0], found[1][0])
    assert np.array_equal(found[0][1], found[1][1])


@pytest.mark.parametrize("name", RUNTIMES)
def test_spill_is_exact_also_when_memory_has_let_its_pages_go(
    name: str, bundles: dict[str, Bundle], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    skip_unless_usable(name)
    if sys.platform != "linux":
        pytest.skip("pages are dropped by the calls of Linux")
    monkeypatch.setenv("DSEDGE_CACHE", str(tmp_path))
    bundle, ids = bundles["llama"], random_ids(150)
    options = RuntimeOptions(runtime=name, exact=True)
    layout = plan_layout(bundle.spec, 200, chunk=50, policy="spill")
    if name not in ("native", "onnx"):
        with pytest.raises(UnsupportedError, match=f"spill keeps keys and values in a file; runtime {name} cannot"):
            open_runtime(bundle, layout, options)
        return
    spilled, plain = (
        open_runtime(bundle, layout, options),
        open_runtime(bundle, replace(layout, storage="memory"), options),
    )
    first, second = Session(spilled), Session(plain)
    for start in range(0, 150, 50):
        assert np.array_equal(first.feed(ids[start : start + 50]), second.feed(ids[start : start + 50]))
        assert drop_pages(tmp_path) >= spilled.kv_bytes - 4096
    assert list(tmp_path.iterdir()) == []  # the file has no name
    with pytest.raises(PromptTooLongError, match="201 tokens and the context holds 200"):
        first.feed(random_ids(51))
    spilled.close()
    plain.close()


def drop_pages(folder: Path) -> int:
    """Have the system write the pages of maps of files below a folder, and forget them; how many bytes they have."""
    libc, size = ctypes.CDLL(None, use_errno=True), 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        if str(folder) in line:
            start, stop = (int(part, 16) for part in line.split()[0].split("-"))
            for call, how in ((libc.msync, 4), (libc.madvise, 4)):  # MS_SYNC, MADV_DONTNEED
                assert call(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), how) == 0
            size += stop - start
    return size
