"""The engine against slow models: each answer is the one that its prompt gets alone, whatever else happens."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle as Answers
from hypothesis.stateful import RuleBasedStateMachine, consumes, initialize, multiple, precondition, rule

from edge import saving
from edge.bundle import Bundle
from edge.engine import Answer, Engine
from edge.errors import NumericsError, OptionError, PoolFullError, PromptTooLongError
from edge.kv import plan_layout
from edge.options import GenerateOptions
from edge.results import Request
from edge.runtime import Batch, Capabilities, Runtime, Segment
from edge.sampling import Sampler
from runtimes.scripted import ScriptedRuntime, write_bundle
from tests.edge import slow_policies
from tests.edge.slow_policies import Sliding, next_of

VOCAB, END = 260, 256


class Hash(ScriptedRuntime):
    """A model whose next token follows from all that the latest query sees: a wrong slot is a wrong answer."""

    def __init__(self, bundle: Bundle, *, extents: bool = False, failing: int = -1, **layout: Any) -> None:
        super().__init__(bundle, plan_layout(bundle.spec, **layout))
        self.capabilities = Capabilities(extents=extents, batching=True, attention=True)  # type: ignore[misc]
        self.failing = failing  # a token whose sequence's forwards fail
        self.rows = self.head_rows = 0
        self.most = 0

    def forward(self, batch: Batch) -> list[Any]:
        if any(self.failing in segment.tokens for segment in batch.segments):
            raise NumericsError("as was asked for")
        self.most = max(self.most, len(batch.segments))
        self.rows += sum(len(segment.tokens) for segment in batch.segments)
        self.head_rows += sum(segment.logit_rows for segment in batch.segments)
        return super().forward(batch)

    def _answer(self, segment: Segment) -> int:
        for slots, plan in zip(self._slots, segment.plan.rings, strict=True):
            slots[plan.writes] = segment.tokens
        return next_of(self.seen(segment))


def alone(prompt: list[int], count: int, window: int, sinks: int = 0) -> list[int]:
    """What a prompt gets from such a model by itself."""
    return slow_policies.alone(prompt, count, Sliding(window, sinks))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return write_bundle(tmp_path_factory.mktemp("engine") / "x.dsedge", ["x"])


def request(prompt: list[int], count: int, **options: Any) -> Request:
    wanted = GenerateOptions(max_tokens=count, ignore_eos=True, **options)
    return Request(tuple(prompt), (END,), VOCAB, wanted, threading.Event(), {})


def add(engine: Engine, prompt: list[int], count: int, *, paced: bool = False) -> Answer:
    asked = request(prompt, count)
    return engine.add(asked, Sampler(asked.options, VOCAB), paced=paced)


def finish(engine: Engine, *answers: Answer) -> None:
    for _ in range(2000):
        if all(answer.end for answer in answers):
            return
        engine.step()
    raise AssertionError("the engine does not come to an end")


def ids(start: int, count: int) -> list[int]:
    return [(start + i * 7) % 250 for i in range(count)]


@pytest.mark.parametrize("extents", [False, True])
def test_k10_many_answers_at_once_are_those_of_each_alone(extents: bool, bundle: Bundle) -> None:
    runtime = Hash(bundle, extents=extents, context=256, chunk=16, sequences=20)
    engine = Engine(runtime)
    prompts = [ids(i, 3 + 9 * i) for i in range(20)]
    answers = [add(engine, prompt, 12 + i) for i, prompt in enumerate(prompts)]
    finish(engine, *answers)
    for i, (answer, prompt) in enumerate(zip(answers, prompts, strict=True)):
        assert answer.tokens == alone(prompt, 12 + i, 256)
        assert answer.end is not None
        assert answer.end.finish_reason == "length"
    assert 8 < runtime.most <= 16
    assert not engine.answers
    assert runtime.head_rows == sum(12 + i for i in range(20))  # the head is run for no other row


def test_events_say_all_that_happens_in_order(bundle: Bundle) -> None:
    engine = Engine(Hash(bundle, context=256, chunk=16, sequences=2))
    first, second = add(engine, ids(0, 40), 3), add(engine, ids(1, 5), 1)
    events = [event for _ in range(9) for event in engine.step()]
    for answer in (first, second):
        mine = [event for event in events if event.answer == answer.number]
        assert [event.token.id for event in mine if event.token] == answer.tokens
        assert [event.end.finish_reason for event in mine if event.end] == ["length"]
        assert mine[-1].end is not None
    assert len(events) == 3 + 1 + 2


def test_prompts_are_computed_by_turns_and_no_decoding_waits_for_a_whole_one(bundle: Bundle) -> None:
    engine = Engine(Hash(bundle, context=2048, chunk=64, sequences=3))
    decoding = add(engine, ids(0, 3), 100)
    while not decoding.made:
        engine.step()
    long, short = add(engine, ids(1, 1000), 1), add(engine, ids(2, 90), 1)
    made = len(decoding.made)
    steps = 0
    while not short.end:
        engine.step()
        steps += 1
        assert len(decoding.made) == made + steps
    assert steps <= 5
    assert not long.made


def test_a_prompt_that_begins_like_another_is_computed_once(bundle: Bundle) -> None:
    """Sixteen conversations with one system prompt of a thousand tokens, all asked for at the same time."""
    runtime = Hash(bundle, context=2048, chunk=256, sequences=4)
    engine = Engine(runtime)
    system = ids(0, 1000)
    answers = [add(engine, [*system, 200 + i, 3, 4], 5) for i in range(16)]
    most = 0
    for _ in range(200):
        engine.step()
        pool = engine.residents.pools.pools[0]
        most = max(most, pool.blocks - pool.free)
    assert [answer.tokens for answer in answers] == [alone([*system, 200 + i, 3, 4], 5, 2048) for i in range(16)]
    assert runtime.rows == 1000 + 16 * (3 + 4)
    assert most <= 1000 // 64 + 1 + 16  # held once, but for the block that each goes on in
    assert [answer.cached for answer in answers] == [0] + [1000] * 15


@pytest.mark.parametrize("extents", [False, True])
def test_conversations_by_turns_keep_their_own_cache(extents: bool, bundle: Bundle) -> None:
    engine = Engine(Hash(bundle, extents=extents, context=512, chunk=64, sequences=2))
    talks = [ids(0, 120), ids(1, 90)]
    for turn in range(3):
        for i, talk in enumerate(talks):
            known = len(talk)
            talk += ids(50 + turn, 20)
            answer = add(engine, talk, 6)
            finish(engine, answer)
            assert answer.tokens == alone(talk, 6, 512)
            assert turn == 0 or answer.cached == known - 1 + 0 * i  # the latest token was drawn and not yet run
            talk += answer.tokens


def test_an_exact_hit_computes_one_token(bundle: Bundle) -> None:
    runtime = Hash(bundle, context=512, chunk=64, sequences=2)
    engine = Engine(runtime)
    first = add(engine, ids(0, 130), 1)
    finish(engine, first)
    runtime.rows = 0
    again = add(engine, ids(0, 130), 1)
    finish(engine, again)
    assert (again.tokens, again.cached, runtime.rows) == (first.tokens, 129, 1)


@pytest.mark.parametrize("extents", [False, True])
def test_k4_history_that_a_sequence_has_dropped_is_computed_again(extents: bool, bundle: Bundle) -> None:
    engine = Engine(Hash(bundle, extents=extents, context=90, chunk=16, sequences=2, policy="sliding"))
    long = ids(0, 250)
    finish(engine, add(engine, long, 3))
    for shared, cached in ((40, 0), (249, 249)):
        prompt = [*long[:shared], 9]
        answer = add(engine, prompt, 7)
        finish(engine, answer)
        assert (answer.tokens, answer.cached) == (alone(prompt, 7, 90), cached)


@pytest.mark.parametrize("extents", [False, True])
def test_a_pool_that_is_too_small_for_all_serves_all(extents: bool, bundle: Bundle) -> None:
    """Answers lose their keys and values to others, and are computed again to the same tokens."""
    engine = Engine(Hash(bundle, extents=extents, context=256, chunk=32, sequences=2))
    prompts = [ids(i, 100) for i in range(6)]
    answers = [add(engine, prompt, 120) for prompt in prompts]
    finish(engine, *answers)
    assert [answer.tokens for answer in answers] == [alone(prompt, 120, 256) for prompt in prompts]


def test_one_that_fails_hurts_no_other(bundle: Bundle) -> None:
    engine = Engine(Hash(bundle, context=256, chunk=16, sequences=3, failing=255))
    fine = [add(engine, ids(i, 30), 9) for i in range(2)]
    failing = add(engine, [*ids(9, 20), 255], 9)
    finish(engine, *fine, failing)
    assert [answer.tokens for answer in fine] == [alone(ids(i, 30), 9, 256) for i in range(2)]
    assert failing.end is not None
    assert isinstance(failing.end.error, NumericsError)
    finish(engine, last := add(engine, ids(9, 20), 4))
    assert last.tokens == alone(ids(9, 20), 4, 256)


def test_what_cannot_be_is_refused(bundle: Bundle) -> None:
    engine = Engine(Hash(bundle, context=64, chunk=16))
    with pytest.raises(PromptTooLongError, match="65 tokens and the context holds 64"):
        add(engine, ids(0, 65), 1)
    with pytest.raises(OptionError, match="no answer 7 is under way"):
        engine.abort(7)
    answer = add(engine, ids(0, 30), 50)
    engine.step()  # in the middle of its prompt
    engine.abort(answer.number)
    events = engine.step()
    assert [event.end.finish_reason for event in events if event.end] == ["cancel"]
    with pytest.raises(OptionError, match=f"no answer {answer.number} is under way"):
        engine.abort(answer.number)


def test_seeds_give_the_same_draws_beside_others(bundle: Bundle) -> None:
    def drawn(others: int) -> list[int]:
        engine = Engine(Hash(bundle, context=256, chunk=16, sequences=4))
        asked = request(ids(0, 30), 20, temperature=5.0, seed=3)
        answer = engine.add(asked, Sampler(asked.options, VOCAB))
        rest = [add(engine, ids(i + 1, 40), 15) for i in range(others)]
        finish(engine, answer, *rest)
        return answer.tokens

    assert drawn(0) == drawn(3)


def test_memory_that_runs_out_is_an_error_with_both_numbers(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the system would end the process: at the block that memory has no room for."""
    free = [1 << 40]
    monkeypatch.setattr("edge.engine.residents.available_memory", lambda: free[0])
    engine = Engine(Hash(bundle, context=512, chunk=64, sequences=2))
    fine, failing = add(engine, ids(0, 100), 70), add(engine, ids(1, 100), 70)
    while not failing.made:
        engine.step()
    free[0] = (64 << 20) + 1000  # a block takes 64 rows of 16 bytes
    finish(engine, fine, failing)
    assert fine.tokens == alone(ids(0, 100), 70, 512)  # it goes on in the room of the other
    assert failing.end is not None
    assert failing.tokens == alone(ids(1, 100), 70, 512)  # and the other after it: nothing is lost
    finish(engine, alone_too_long := add(engine, ids(2, 300), 9))
    assert alone_too_long.end is not None
    assert isinstance(alone_too_long.end.error, PoolFullError)
    message = "keys and values of 64 more tokens take 0.0 MB, and 67 MB of memory are free"
    assert message in str(alone_too_long.end.error)


@dataclass
class Talk:
    prompt: list[int]
    count: int
    pinned: int
    answer: Answer
    expected: list[int] | None = None


class Engines(RuleBasedStateMachine):
    """Answers are added, read or not, aborted, continued, saved and loaded, in a pool too small for all of them, while
    memory runs out and comes back. Each gets what its prompt gets alone."""

    talks = Answers("talks")
    files = Answers("files")
    made: Bundle
    folder: Path
    vocab = VOCAB
    policies = ("error", "sliding", "evict")

    @initialize(
        extents=st.booleans(), number=st.integers(0, 11), sinks=st.sampled_from([0, 3]),
        chunk=st.sampled_from([1, 16, 70]), sequences=st.integers(1, 3),
    )  # fmt: skip
    def open_engine(self, extents: bool, number: int, sinks: int, chunk: int, sequences: int) -> None:
        self.policy = policy = self.policies[number % len(self.policies)]
        self.sinks = sinks if policy in ("sliding", "evict") else 0
        self.context = 256 if policy == "evict" else 90
        layout = {"context": self.context, "chunk": chunk, "sinks": self.sinks, "policy": policy}
        self.runtime = self.opened(extents and policy != "evict", sequences=sequences, **layout)
        self.engine = Engine(self.runtime)
        self.starved = self.were_starved = False
        self.engine.residents.pools.memory = self.memory
        self.open: list[Talk] = []

    def opened(self, extents: bool, **layout: Any) -> Runtime:
        return Hash(self.made, extents=extents, **layout)

    def memory(self, ring: int, blocks: int) -> None:
        if self.starved:
            raise PoolFullError("no memory")

    @rule(starved=st.booleans())
    def memory_runs_out_or_comes_back(self, starved: bool) -> None:
        self.starved = starved
        self.were_starved |= starved

    @rule(
        target=talks, start=st.integers(0, 2), length=st.integers(1, 250), count=st.integers(1, 40),
        paced=st.booleans(), pinned=st.sampled_from([0, 20]),
    )  # fmt: skip
    def ask(self, start: int, length: int, count: int, paced: bool, pinned: int) -> Talk:
        return self._ask(ids(start, length + 100 * (self.policy == "evict")), count, paced, pinned)

    def _ask(self, prompt: list[int], count: int, paced: bool, pinned: int) -> Talk:
        if self.policy in ("error", "spill"):
            prompt = prompt[: self.context - 5]
            count = min(count, self.context - len(prompt) + 1)
        asked = replace(request(prompt, count), pinned=pinned)
        talk = Talk(prompt, count, pinned, self.engine.add(asked, Sampler(asked.options, self.vocab), paced=paced))
        self.open.append(talk)
        return talk

    @rule(target=talks, talk=talks, count=st.integers(1, 40))
    def go_on(self, talk: Talk, count: int) -> Talk:
        return self._ask([*talk.prompt, *talk.answer.tokens, 7, 8], count, False, talk.pinned)

    @rule(steps=st.integers(1, 12))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.engine.step()
        for talk in self.open:
            self.check(talk)

    @rule(talk=talks)
    def read(self, talk: Talk) -> None:
        talk.answer.read = len(talk.answer.made)

    @rule(talk=consumes(talks))
    def abort(self, talk: Talk) -> None:
        if talk.answer.end is None:
            self.engine.abort(talk.answer.number)

    @rule(target=files, talk=talks)
    def save(self, talk: Talk) -> Any:
        self.engine.settle()
        session = self.engine.residents.find(talk.prompt)
        if session is None:
            return multiple()
        path = self.folder / f"{len(os.listdir(self.folder))}"
        saving.save(path, self.made, session, session.tokens)
        return path

    @rule(path=files)
    def load(self, path: Path) -> None:
        self.engine.settle()
        residents = self.engine.residents
        try:
            found = saving.load(path, self.made, self.runtime, residents.pools)
        except PoolFullError:
            return
        assert (found.session.tokens, found.exact) == (found.note, True)
        residents.keep(found.session)

    @precondition(lambda self: hasattr(self, "engine"))
    @rule()
    def all_that_is_read_comes_to_its_end(self) -> None:
        for _ in range(3000):
            for talk in self.open:
                talk.answer.read = len(talk.answer.made)
            if not self.engine.step() and not self.engine.answers:
                break
        assert all(talk.answer.end for talk in self.open)
        self.open.clear()
        used = {block for session in self.engine.residents._idle for block in session.cache.rings[0].blocks()}
        pool = self.engine.residents.pools.pools[0]
        assert pool.free == pool.blocks - len(used)

    def check(self, talk: Talk) -> None:
        found = talk.answer.tokens
        if talk.expected is None:
            talk.expected = self.alone(talk.prompt, talk.count, talk.pinned)
        assert found == talk.expected[: len(found)]
        assert len(found) <= talk.count
        error = talk.answer.end.error if talk.answer.end else None
        assert error is None or (self.were_starved and isinstance(error, PoolFullError))

    def alone(self, prompt: list[int], count: int, pinned: int) -> list[int]:
        slow: slow_policies.Slow
        if self.policy == "evict":
            slow = slow_policies.Evicting(4, max(self.sinks, pinned))
        else:
            slow = slow_policies.pinned(self.context, self.sinks, pinned if self.policy == "sliding" else 0)
        return slow_policies.alone(prompt, count, slow)


@pytest.mark.parametrize("examples", [60])
def test_engines(examples: int, bundle: Bundle, tmp_path: Path) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    machine = type("Machine", (Engines,), {"made": bundle, "folder": tmp_path})
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=30, deadline=None))
