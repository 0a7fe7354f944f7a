"""Answers computed together on real backends: each gets the tokens that it gets alone, whatever joins or leaves."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from edge.bundle import Bundle
from edge.engine import Answer, Engine
from edge.kv import plan_layout
from edge.options import GenerateOptions, RuntimeOptions
from edge.results import Request
from edge.runtime import Runtime, open_runtime
from edge.sampling import Sampler
from edge.session import Session
from tests.edge.test_engine import Engines
from tests.runtimes.test_conformance import LACKS, export_tiny, random_ids, skip_unless_usable

VOCAB = 300
MODELS = ("llama", "gemma3", "deepseek-v3", "qwen3-moe")
PROMPTS = [random_ids(count, seed=count) for count in (3, 70, 17, 130, 40)]


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    return {model: export_tiny(tmp_path_factory.mktemp(model), model) for model in MODELS}


def opened(name: str, bundle: Bundle, sequences: int) -> Runtime:
    skip_unless_usable(name)
    if any(isinstance(op.attrs, LACKS[name]) for op in bundle.graph.ops):
        pytest.skip(f"{name} has no such op")
    layout = plan_layout(bundle.spec, 192, chunk=32, sequences=sequences)
    return open_runtime(bundle, layout, RuntimeOptions(runtime=name, threads=2))


def ask(engine: Engine, prompt: list[int], temperature: float, count: int = 40) -> Answer:
    options = GenerateOptions(max_tokens=count, ignore_eos=True, temperature=temperature, seed=5)
    request = Request(tuple(prompt), (), VOCAB, options, threading.Event(), {})
    return engine.add(request, Sampler(options, VOCAB))


def finish(engine: Engine) -> None:
    while engine.step() or engine.answers:
        pass


@pytest.mark.parametrize("sequences", [2, 5])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", ["native", "onnx"])
def test_each_gets_what_it_gets_alone(name: str, model: str, sequences: int, bundles: dict[str, Bundle]) -> None:
    """Greedy and drawn ones; one joins late, one is aborted, and in the smaller pool they lose rows to each other."""
    runtime = opened(name, bundles[model], sequences)
    expected = []
    for number, prompt in enumerate(PROMPTS):
        engine = Engine(runtime)
        alone = ask(engine, prompt, number % 2)
        finish(engine)
        expected.append(alone.tokens)
    engine = Engine(runtime)
    answers = [ask(engine, prompt, number % 2) for number, prompt in enumerate(PROMPTS[:4])]
    leaving = ask(engine, random_ids(50, seed=99), 1)
    for _ in range(9):
        engine.step()
    engine.abort(leaving.number)
    answers.append(ask(engine, PROMPTS[4], 0))
    finish(engine)
    runtime.close()
    assert [answer.tokens for answer in answers] == expected


def test_turns_that_go_on_get_what_a_cold_run_gives(bundles: dict[str, Bundle]) -> None:
    """Two conversations by turns: what they share and what they keep is what another runtime computes, to the bit."""
    runtime, other = (opened("native", bundles["llama"], 3) for _ in range(2))
    engine = Engine(runtime)
    talks = [list(PROMPTS[2]), [*PROMPTS[2][:9], 5, 6]]
    for turn in range(3):
        answers = [ask(engine, talk, 1, 12) for talk in talks]
        finish(engine)
        for talk, answer in zip(talks, answers, strict=True):
            cold = Engine(other)
            again = ask(cold, talk, 1, 12)
            finish(cold)
            assert (again.cached, again.tokens) == (0, answer.tokens)
            assert answer.cached == (len(talk) - 11 if turn else answer.cached)
            talk += [*answer.tokens, *random_ids(10, seed=turn)]
    runtime.close()
    other.close()


def test_a_session_on_disk_is_what_it_was(bundles: dict[str, Bundle], tmp_path: Path) -> None:
    from edge import saving

    runtime = opened("native", bundles["gemma3"], 3)
    engine = Engine(runtime)
    talk = list(PROMPTS[1])
    talk += ask_and_finish(engine, talk)
    session = engine.residents.find(talk)
    assert session is not None
    saving.save(tmp_path / "s", bundles["gemma3"], session)
    talk += random_ids(10)
    expected = ask_and_finish(engine, talk)
    other = Engine(runtime)
    other.residents.keep(saving.load(tmp_path / "s", bundles["gemma3"], runtime, other.residents.pools).session)
    again = ask(other, talk, 0)
    finish(other)
    assert (again.tokens, again.cached) == (expected, len(talk) - 11)
    runtime.close()


def ask_and_finish(engine: Engine, prompt: list[int]) -> list[int]:
    answer = ask(engine, prompt, 0)
    finish(engine)
    return answer.tokens


class OnABackend(Engines):
    """The same operations as on the slow model's runtime, and each gets what a cold run of its tokens gives."""

    name: str
    vocab = VOCAB

    def opened(self, extents: bool, **layout: Any) -> Runtime:
        options = RuntimeOptions(runtime=self.name, threads=1)
        self.cold = open_runtime(self.made, plan_layout(self.made.spec, **{**layout, "sequences": 1}), options)
        return open_runtime(self.made, plan_layout(self.made.spec, **layout), options)

    def alone(self, prompt: list[int], count: int, pinned: int) -> list[int]:
        session, tokens = Session(self.cold, pinned=pinned), list(prompt)
        for _ in range(count):
            logits = session.feed(tokens[len(session.tokens) :])
            assert logits is not None
            tokens.append(int(logits.argmax()))
        return tokens[len(prompt) :]

    def teardown(self) -> None:
        for runtime in (self.runtime, self.cold) if hasattr(self, "cold") else ():
            runtime.close()


@pytest.mark.parametrize("name", ["native", "onnx"])
def test_whatever_happens_each_gets_what_it_gets_alone(
    name: str, bundles: dict[str, Bundle], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_unless_usable(name)
    monkeypatch.setenv("DSEDGE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "files").mkdir()
    policies = ("error", "sliding", "spill", *(["evict"] if name == "native" else []))
    made = {"made": bundles["llama"], "name": name, "folder": tmp_path / "files", "policies": policies}
    machine = type("Machine", (OnABackend,), made)
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=8, stateful_step_count=20, deadline=None, derandomize=True, database=None),
    )
