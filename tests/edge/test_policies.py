"""Context policies against slow models by lists: what each query sees, and what is told of what went."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge import saving
from edge.bundle import Bundle
from edge.engine import Engine
from edge.errors import OptionError, PromptTooLongError, UnsupportedError
from edge.kv import Pools, plan_layout, policies
from edge.options import GenerateOptions, RuntimeOptions
from edge.results import Request
from edge.runtime import open_runtime
from edge.sampling import Sampler
from edge.session import Session
from runtimes.scripted import write_bundle
from tests.edge.slow_policies import Evicting, alone, evicting
from tests.edge.slow_policies import pinned as pinned_model
from tests.edge.test_engine import END, VOCAB, Hash


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return write_bundle(tmp_path_factory.mktemp("policies") / "x.dsedge", ["x"])


EVICT: dict[str, Any] = {"policy": "evict", "context": 320, "sinks": 3}


def random_tokens(count: int, seed: int = 0) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(0, 250, count)]


@pytest.mark.parametrize("chunk", [1, 7, 64, 300])
@pytest.mark.parametrize("blocks", [4, 5])
def test_evict_keeps_what_got_attention_whatever_the_chunks(chunk: int, blocks: int, bundle: Bundle) -> None:
    """Sinks, the latest half, and the others by score; each query sees exactly those, by position."""
    runtime = Hash(bundle, chunk=chunk, policy="evict", context=64 * blocks + 5, sinks=3)
    session = Session(runtime)
    tokens = random_tokens(700)
    expected = evicting(tokens, blocks, 3)
    while len(session.tokens) < len(tokens):
        done = len(session.tokens)
        count = min(session.cache.room(chunk), len(tokens) - done)
        session.step(tokens[done : done + count])
        assert runtime.visible == [tokens[position] for position in expected[done + count - 1]]
    assert session.dropped == 700 - len(expected[-1])
    assert session.cache.used == len(expected[-1]) <= 64 * blocks
    assert len(session.cache.rings[0].blocks()) <= blocks
    session.close()
    pool = session.pools.pools[0]
    assert pool.free == pool.blocks


def test_evict_costs_nothing_until_the_context_is_full(bundle: Bundle) -> None:
    """No attention is asked for, and chunks are whole, until the block before tokens first go."""
    session = Session(Hash(bundle, chunk=100, **EVICT))
    tokens = random_tokens(500)
    wanted, counts = [], []
    while len(session.tokens) < 500:
        done = len(session.tokens)
        counts.append(session.cache.portion(500 - done))
        (plan,) = session.segment(tokens[done : done + counts[-1]]).plan.rings
        wanted.append(plan.attention is not None)
        session.commit(tokens[done : done + counts[-1]])
    assert counts == [100, 100, 100, 20, 64, 64, 52]
    assert wanted == [False, False, True, True, True, True, True]


def test_evict_ends_where_the_model_was_trained_to(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "x.dsedge", ["x"], context=512)
    runtime = Hash(bundle, chunk=64, policy="evict", context=256)
    session = Session(runtime)
    with pytest.raises(PromptTooLongError, match="513 tokens and the context holds 512"):
        session.feed(random_tokens(513))
    session.feed(random_tokens(512))
    assert session.cache.room(1) == 0
    with pytest.raises(OptionError, match="a context of 255; evict needs at least 256"):
        plan_layout(bundle.spec, 255, policy="evict")


@pytest.mark.parametrize("rewind", [1, 20, 63, 64, 65, 200, 436])
def test_k4_a_rewind_under_evict_is_exact_or_refused(rewind: int, bundle: Bundle) -> None:
    """To behind position 384, where tokens last went; whoever goes on then chooses as a cold run does."""
    runtime = Hash(bundle, chunk=50, sequences=2, **EVICT)
    session = Session(runtime)
    tokens = random_tokens(437)
    session.feed(tokens)
    prompt = [*tokens[: 437 - rewind], *random_tokens(300, seed=1)]
    assert session.align(prompt) == (437 - rewind if 437 - rewind >= 384 else 0)
    session.feed(prompt[len(session.tokens) :])
    assert runtime.visible == [prompt[position] for position in evicting(prompt, 5, 3)[-1]]


@pytest.mark.parametrize("length", [330, 383, 384, 420, 700])
def test_forks_under_evict_go_their_own_ways(length: int, bundle: Bundle) -> None:
    """What one lets go and moves the other still has."""
    runtime = Hash(bundle, chunk=50, sequences=3, **EVICT)
    session = Session(runtime)
    tokens = random_tokens(length)
    session.feed(tokens)
    other = session.fork()
    for copy, seed in ((session, 1), (other, 2), (session, 3), (other, 4)):
        more = random_tokens(130, seed)
        copy.feed(more)
        assert runtime.visible == [copy.tokens[position] for position in evicting(copy.tokens, 5, 3)[-1]]
    for copy in (session, other):
        copy.close()
    assert session.pools.pools[0].free == session.pools.pools[0].blocks


@pytest.mark.parametrize("length", [100, 319, 320, 321, 400, 700])
def test_k9_a_sequence_under_evict_goes_on_from_a_file(length: int, bundle: Bundle, tmp_path: Path) -> None:
    first, second = (Hash(bundle, chunk=50, **EVICT) for _ in range(2))
    session = Session(first)
    tokens = random_tokens(length)
    session.feed(tokens)
    saving.save(tmp_path / "s", bundle, session)
    found = saving.load(tmp_path / "s", bundle, second, Pools(second.layout)).session
    assert (found.tokens, found.dropped, found.cache.used) == (tokens, session.dropped, session.cache.used)
    tokens += random_tokens(200, seed=1)
    found.feed(tokens[length:])
    assert second.visible == [tokens[position] for position in evicting(tokens, 5, 3)[-1]]
    for other, message in (
        ({**EVICT, "context": 384}, r"has blocks \[5\], and here it is \[6\]"),
        ({**EVICT, "policy": "sliding"}, "has policy evict, and here it is sliding"),
    ):
        runtime = Hash(bundle, chunk=50, **other)
        with pytest.raises(OptionError, match=message):
            saving.load(tmp_path / "s", bundle, runtime, Pools(runtime.layout))


def test_answers_under_evict_are_those_of_each_alone(bundle: Bundle) -> None:
    """Also where the pool has no room for all, and for one that goes on from another's beginning."""
    engine = Engine(Hash(bundle, chunk=64, sequences=2, **EVICT))
    prompts = [random_tokens(300 + 40 * i, seed=i) for i in range(4)]
    prompts.append([*prompts[0][:250], *random_tokens(90, seed=9)])
    answers = []
    for prompt in prompts:
        options = GenerateOptions(max_tokens=80, ignore_eos=True)
        request = Request(tuple(prompt), (END,), VOCAB, options, threading.Event(), {})
        answers.append(engine.add(request, Sampler(options, VOCAB)))
    for _ in range(3000):
        if all(answer.end for answer in answers):
            break
        engine.step()
    for answer, prompt in zip(answers, prompts, strict=True):
        assert answer.tokens == alone(prompt, 80, Evicting(5, 3))
        assert answer.end is not None
        assert answer.end.dropped_tokens == len(prompt) + 79 - len(evicting([*prompt, *answer.tokens[:-1]], 5, 3)[-1])


@pytest.mark.parametrize("pinned", [0, 4, 30, 64, 65, 100, 150])
@pytest.mark.parametrize("chunk", [1, 16])
def test_sliding_keeps_a_pinned_beginning(pinned: int, chunk: int, bundle: Bundle) -> None:
    runtime = Hash(bundle, context=400, chunk=chunk, policy="sliding", sinks=4)
    session = Session(runtime, pinned=pinned)
    tokens = random_tokens(900)
    slow = pinned_model(400, 4, pinned)
    seen = [slow.add(token) for token in tokens]
    while len(session.tokens) < 900:
        done = len(session.tokens)
        count = min(session.cache.room(chunk), 900 - done)
        session.step(tokens[done : done + count])
        expected = seen[done + count - 1]
        assert runtime.visible == [tokens[position] for position in expected]
    assert session.dropped == 900 - len(expected)
    assert len(session.cache.rings[0].blocks()) <= runtime.layout.rings[0].blocks  # no more memory than without


def test_a_beginning_too_long_to_be_pinned_is_pinned_in_part(bundle: Bundle) -> None:
    runtime = Hash(bundle, context=400, chunk=16, policy="sliding", sinks=4)
    (ring,) = Session(runtime, pinned=390).cache.rings
    assert ring.layout.sinks == 192
    assert ring.layout.window == 400 - 4 - 2 * 2 * 64


def test_pinned_and_other_sequences_share_only_what_is_the_same(bundle: Bundle) -> None:
    """A beginning of which neither has dropped anything; behind that a prompt is computed anew."""
    engine = Engine(Hash(bundle, context=400, chunk=64, policy="sliding", sinks=4, sequences=4))
    long = random_tokens(600)

    def cached(prompt: list[int], pinned: int) -> int | None:
        options = GenerateOptions(max_tokens=2, ignore_eos=True)
        request = Request(tuple(prompt), (END,), VOCAB, options, threading.Event(), {}, pinned=pinned)
        answer = engine.add(request, Sampler(options, VOCAB))
        while not answer.end:
            engine.step()
        assert answer.tokens == alone(prompt, 2, pinned_model(400, 4, pinned))
        return answer.cached

    assert cached(long[:300], 0) == 0
    assert cached([*long[:300], 7], 30) == 300
    assert cached(long, 0) == 300
    assert cached([*long, 7], 30) == 300
    assert cached([*long, 8], 30) == 600
    assert cached([*long, 9], 0) == 600


@pytest.mark.parametrize("name", [name for name, policy in policies.POLICIES.items() if policy.attention])
def test_a_runtime_that_cannot_tell_attention_refuses_by_name(name: str, bundle: Bundle, monkeypatch: Any) -> None:
    from runtimes import scripted

    capabilities = scripted.Capabilities(extents=False, batching=True)
    monkeypatch.setattr(scripted.ScriptedRuntime, "capabilities", capabilities)
    layout = plan_layout(bundle.spec, 1024, policy=name)
    with pytest.raises(UnsupportedError, match=f"the policy {name} goes by the attention .* scripted cannot tell"):
        open_runtime(bundle, layout, RuntimeOptions(runtime="scripted"))


def test_an_unknown_policy_lists_the_known() -> None:
    with pytest.raises(OptionError, match=r"policy is 'keep'; it must be one of error, sliding, evict, spill"):
        RuntimeOptions(policy="keep")
