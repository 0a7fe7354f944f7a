"""Generation over the scripted runtime: how an answer ends, what fits, and what the cache keeps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edge import sizing
from edge.bundle import Manifest
from edge.commands.inspect import describe
from edge.errors import BundleError, OptionError, PromptTooLongError
from edge.options import GenerateOptions, RuntimeOptions, Sampling
from edge.pipeline import Pipeline, load
from runtimes.scripted import write_bundle
from tests.edge.scripted import FOX, OpenScripted, change_manifest, runtime, without


def prompt(count: int) -> list[int]:
    """Ids of which any two neighbours differ."""
    return [i % 250 for i in range(count)]


# --- how an answer ends -------------------------------------------------------------------------------------------


def test_an_end_token_ends_the_answer_and_is_not_part_of_it(opened: OpenScripted) -> None:
    result = opened().complete("hi")
    assert (result.text, result.finish_reason, result.stop) == (FOX, "stop", None)
    assert result.tokens == tuple(FOX.encode())
    # <|user|> h i <|end|> <|assistant|>
    assert (result.prompt_tokens, result.completion_tokens, result.cached_tokens) == (5, len(FOX), 0)
    assert (result.dropped_tokens, result.kv_used, result.kv_slots) == (0, 5 + len(FOX), 4096)


def test_t6_any_of_several_end_tokens_ends_the_answer(tmp_path: Path) -> None:
    """The bundle's eos are 5, 7 and 9; each ends its answer and none is shown."""
    bundle = write_bundle(tmp_path / "x.dsedge", [[101, 102, 7, 103], [101, 9, 104], [5]])
    change_manifest(bundle.path, lambda manifest: manifest["tokenizer"].update(eos=[5, 7, 9]))
    with load(bundle.path, RuntimeOptions(runtime="scripted")) as pipeline:
        found = [pipeline.complete("hi") for _ in range(3)]
        assert [(result.tokens, result.finish_reason) for result in found] == [
            ((101, 102), "stop"), ((101,), "stop"), ((), "stop"),
        ]  # fmt: skip
        assert [result.text for result in found] == ["ef", "e", ""]
        ignored = pipeline.complete("hi", GenerateOptions(ignore_eos=True, max_tokens=4))
        assert (ignored.tokens, ignored.finish_reason) == ((101, 102, 7, 103), "length")


def test_a_stop_string_ends_the_answer_before_itself(opened: OpenScripted) -> None:
    pipeline = opened()
    result = pipeline.complete("hi", GenerateOptions(stop=("brown", "zzz")))
    assert (result.text, result.finish_reason, result.stop) == ("The quick ", "stop", "brown")
    assert result.completion_tokens == len("The quick brown")
    assert runtime(pipeline).forwards == len("The quick brown")  # a prefill and a step a token, and no more


def test_a_stop_string_and_the_last_token_at_once(opened: OpenScripted) -> None:
    """The stop string counts, although max_tokens is reached with it."""
    result = opened().complete("hi", GenerateOptions(stop=("quick",), max_tokens=len("The quick")))
    assert (result.text, result.finish_reason, result.stop) == ("The ", "stop", "quick")


@pytest.mark.parametrize("count", [1, 2, 5])
def test_max_tokens(count: int, opened: OpenScripted) -> None:
    pipeline = opened()
    result = pipeline.complete("hi", GenerateOptions(max_tokens=count))
    assert (result.text, result.finish_reason) == (FOX[:count], "length")
    assert (result.completion_tokens, runtime(pipeline).forwards) == (count, count)


def test_an_answer_that_ends_with_max_tokens_exactly(opened: OpenScripted) -> None:
    assert opened().complete("hi", GenerateOptions(max_tokens=len(FOX))).finish_reason == "length"
    assert opened().complete("hi", GenerateOptions(max_tokens=len(FOX) + 1)).finish_reason == "stop"


@pytest.mark.parametrize(("count", "answer"), [(60, 5), (63, 2), (64, 1)])
def test_k12_a_full_context_ends_the_answer(count: int, answer: int, opened: OpenScripted) -> None:
    """Every slot is used: the last token needs none, since nothing follows it."""
    pipeline = opened("abcdefgh", context=64, chunk=16)
    run = pipeline.tokens(prompt(count))
    assert [event.id for event in run] == list(b"abcdefgh"[:answer])
    assert (run.progress.finish_reason, run.progress.kv_used) == ("length", 64)


@pytest.mark.parametrize(
    ("given", "applied"),
    [
        ({}, Sampling(temperature=0.7, top_p=0.8)),
        ({"temperature": 0}, Sampling(temperature=0, top_p=0.8)),
        ({"temperature": 1.5, "top_k": 3, "top_p": 1}, Sampling(temperature=1.5, top_k=3, top_p=1)),
    ],
)
def test_n13_the_models_own_sampling_is_the_default_and_the_result_says_what_applied(
    given: dict[str, float], applied: Sampling, tmp_path: Path
) -> None:
    bundle = write_bundle(tmp_path / "x.dsedge", [FOX])
    own = replace(bundle.manifest, sampling={"temperature": 0.7, "top_p": 0.8})
    with Pipeline(replace(bundle, manifest=own), RuntimeOptions(runtime="scripted")) as pipeline:
        options: dict[str, Any] = {"seed": 3, **given}
        result = pipeline.complete("hi", GenerateOptions(**options))
        assert (result.sampling, result.text) == (applied, FOX)


def test_n13_a_manifest_with_impossible_sampling_is_refused(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "x.dsedge", [FOX])
    for sampling, message in (({"temperature": -1}, "temperature is -1; it must be"), ({"heat": 1}, "heat")):
        data = {**json.loads(json.dumps(bundle.manifest.to_json())), "sampling": sampling}
        with pytest.raises(BundleError, match=f"manifest is ill-formed.*{message}"):
            Manifest.from_json(data)


# --- prompts and the context --------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [65, 200])
def test_k12_a_prompt_that_does_not_fit_is_refused_with_both_numbers(count: int, opened: OpenScripted) -> None:
    pipeline = opened("abcdefgh", context=64, chunk=16)
    kept = prompt(20)
    assert len(list(pipeline.tokens(kept))) == 8
    forwards = runtime(pipeline).forwards
    with pytest.raises(PromptTooLongError, match=f"has {count} tokens and the context holds 64") as caught:
        list(pipeline.tokens(prompt(count)))
    assert (caught.value.tokens, caught.value.limit) == (count, 64)
    assert runtime(pipeline).forwards == forwards  # before any work
    run = pipeline.tokens(kept)
    assert ([event.id for event in run], run.progress.cached_tokens) == (list(b"abcdefgh"), 19)


@pytest.mark.parametrize(("count", "dropped"), [(63, 6), (64, 7), (65, 8), (200, 143)])
def test_k12_sliding_takes_any_prompt_and_says_what_it_dropped(count: int, dropped: int, opened: OpenScripted) -> None:
    """The answer of eight tokens needs seven slots after the prompt: the last one is not fed back."""
    pipeline = opened("abcdefghij", "zz", context=64, chunk=16, policy="sliding", sinks=0)
    run = pipeline.tokens(prompt(count), GenerateOptions(max_tokens=8))
    events = list(run)
    assert [event.id for event in events] == list(b"abcdefgh")
    # Each drop is an event: the prompt's on the first, then one for each token that is fed back to a full ring.
    assert [event.dropped for event in events] == [max(0, count - 64), *(int(count + i > 64) for i in range(1, 8))]
    assert (run.progress.dropped_tokens, run.progress.finish_reason) == (dropped, "length")
    seen = [*prompt(count), *b"abcdefg"]
    assert sorted(runtime(pipeline).visible) == sorted(seen[-64:])


def test_sliding_with_sinks_keeps_the_first_and_the_latest(opened: OpenScripted) -> None:
    pipeline = opened("xyz", context=32, chunk=8, policy="sliding", sinks=4)
    list(pipeline.tokens(prompt(100), GenerateOptions(max_tokens=3)))
    # Of what was fed, a hundred of the prompt and two of the answer: the first 4 and the latest 28.
    assert sorted(runtime(pipeline).visible) == sorted([*prompt(4), *prompt(100)[-26:], *b"xy"])


@pytest.mark.parametrize(("context", "sinks", "kept"), [(32, None, 4), (3, None, 2), (32, 0, 0), (32, 6, 6)])
def test_n11_sliding_keeps_four_sinks_by_default(
    context: int, sinks: int | None, kept: int, opened: OpenScripted
) -> None:
    rings = opened(context=context, policy="sliding", sinks=sinks).runtime.layout.rings
    assert [(ring.sinks, ring.window) for ring in rings] == [(kept, context - kept)]
    assert opened(context=context).runtime.layout.rings[0].sinks == 0


def test_a_long_prompt_gets_one_answer_however_many_chunks_it_takes(opened: OpenScripted) -> None:
    pipeline = opened("one", "two", "three", chunk=16)
    assert [pipeline.complete("x" * size).text for size in (300, 11, 12)] == ["one", "two", "three"]


@pytest.mark.parametrize(
    ("ids", "words"), [([], "the prompt is empty"), ([1, 260], "vocabulary of 260"), ([-1], "outside the vocabulary")]
)
def test_prompts_that_are_none(ids: list[int], words: str, opened: OpenScripted) -> None:
    with pytest.raises(OptionError, match=words):
        opened().tokens(ids)


def test_an_empty_raw_text_and_a_missing_template(tmp_path: Path, opened: OpenScripted) -> None:
    pipeline = opened()
    with pytest.raises(OptionError, match="the prompt is empty"):
        pipeline.complete("", raw=True)
    with pytest.raises(OptionError, match="a raw prompt is a text"):
        pipeline.complete([{"role": "user", "content": "x"}], raw=True)
    assert pipeline.complete("").text == FOX  # an empty message is still a prompt
    path = without(pipeline.bundle, "chat_template.jinja")
    with load(path, RuntimeOptions(runtime="scripted")) as bare:
        with pytest.raises(OptionError, match="has no chat template; use it raw"):
            bare.complete("hi")
        assert bare.complete("hi", raw=True).text == FOX


# --- the cache between answers ------------------------------------------------------------------------------------


def test_k4_an_identical_prompt_recomputes_its_last_token_and_answers_alike(opened: OpenScripted) -> None:
    pipeline = opened(FOX, FOX)
    first = pipeline.complete("hi there")
    forwards = runtime(pipeline).forwards
    second = pipeline.complete("hi there")
    assert (second.text, second.finish_reason) == (first.text, "stop")
    assert (first.cached_tokens, second.cached_tokens) == (0, second.prompt_tokens - 1)
    assert runtime(pipeline).forwards == 2 * forwards
    assert runtime(pipeline).visible == [*pipeline.encode("hi there"), *FOX.encode()]


def test_the_next_turn_reuses_the_whole_conversation(opened: OpenScripted) -> None:
    pipeline = opened("one", "two")
    messages = [{"role": "user", "content": "a"}]
    first = pipeline.complete(messages)
    messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "b"}]
    second = pipeline.complete(messages)
    assert second.cached_tokens == first.prompt_tokens + first.completion_tokens
    assert runtime(pipeline).visible == [*pipeline.encode(messages), *b"two"]


def test_a_diverging_prompt_keeps_what_is_shared(opened: OpenScripted) -> None:
    pipeline = opened("one", "two")
    first = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "a"}]
    second = [first[0], {"role": "user", "content": "b"}]
    pipeline.complete(first)
    result = pipeline.complete(second)
    # The system turn, which encoded alone ends in <|assistant|>; here <|user|> follows and is shared as well.
    assert result.cached_tokens == len(pipeline.encode(first[:1]))
    assert runtime(pipeline).visible == [*pipeline.encode(second), *b"two"]


def test_k4_history_that_was_dropped_means_a_cold_prefill(opened: OpenScripted) -> None:
    """A window of 16: of turn one's 400 tokens the first 170 are shared, and those before them are gone."""
    pipeline = opened("abcd", "abcd", context=16, chunk=4, policy="sliding", sinks=0)
    list(pipeline.tokens(prompt(400)))
    run = pipeline.tokens([*prompt(170), 255, 254])
    assert [event.id for event in run] == list(b"abcd")
    assert run.progress.cached_tokens == 0
    assert sorted(runtime(pipeline).visible) == sorted([*prompt(170), 255, 254, *b"abcd"][-16:])


def test_reset_forgets(opened: OpenScripted) -> None:
    pipeline = opened("one")
    pipeline.complete("hi")
    pipeline.reset()
    assert pipeline.complete("hi").cached_tokens == 0


# --- figures ------------------------------------------------------------------------------------------------------


class Clock:
    """Seconds that pass only when a forward runs: one each."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._runtime = runtime(pipeline)

    def __call__(self) -> float:
        return float(self._runtime.forwards)


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        (GenerateOptions(), 20),  # nineteen letters and the end token: the first of twenty is prefill's
        (GenerateOptions(max_tokens=4), 4),
        (GenerateOptions(stop=("quick",)), 9),
        (GenerateOptions(max_tokens=1), 1),
    ],
)
def test_rates_count_the_steps_that_were_run(
    options: GenerateOptions, tokens: int, opened: OpenScripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = opened(chunk=2)
    monkeypatch.setattr("edge.engine.engine.time.perf_counter", Clock(pipeline))
    result = pipeline.complete("hi", options)
    stats = result.stats
    assert (stats.prefill_s, stats.ttft_s) == (3.0, 3.0)  # five tokens in chunks of two
    assert stats.prefill_tok_s == pytest.approx(5 / 3)
    assert stats.decode_s == tokens - 1
    assert stats.decode_tok_s == (1.0 if tokens > 1 else 0.0)


def test_the_reported_seed_repeats_the_answer(opened: OpenScripted) -> None:
    pipeline = opened()
    drawn = GenerateOptions(temperature=5.0, max_tokens=20, ignore_eos=True)
    reported = pipeline.complete("hi", drawn)
    again, other = (pipeline.complete("hi", replace(drawn, seed=reported.seed + n)) for n in (0, 1))
    assert (again.seed, again.tokens) == (reported.seed, reported.tokens)
    assert other.tokens != reported.tokens


def test_n8_weights_beyond_a_containers_memory_are_refused_with_both_numbers(
    opened: OpenScripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = opened().bundle.weights.path.stat().st_size
    monkeypatch.setattr(sizing, "memory_limit", lambda: size - 1)
    with pytest.raises(OptionError, match=r"take 0 MB and this container may use 0 MB of memory"):
        opened()


def test_n8_keys_and_values_count_as_well(opened: OpenScripted, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(sequences=1) as fitting:
        needed = fitting.bundle.weights.path.stat().st_size + fitting.runtime.kv_bytes
        assert fitting.runtime.kv_bytes > 0
    monkeypatch.setattr(sizing, "memory_limit", lambda: needed)
    opened(sequences=1).close()
    monkeypatch.setattr(sizing, "memory_limit", lambda: needed - 1)
    with pytest.raises(OptionError, match=r"keys and values for a context of \d+ \d+ MB, .* choose a smaller context"):
        opened(sequences=1)
    monkeypatch.setattr(sizing, "memory_limit", lambda: needed)
    whole = Pipeline(fitting.bundle, RuntimeOptions(runtime="scripted"))
    assert whole.runtime.layout.sequences == 1  # of the four that there would be room for otherwise


@pytest.mark.parametrize(
    ("tokens", "context"), [(10**6, 8192), (8192, 8192), (8191, 8192 - 256), (5000, 4864), (256, 256), (255, None)]
)
def test_an_automatic_context_is_as_long_as_free_memory_holds(
    tokens: int, context: int | None, opened: OpenScripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token takes 16 bytes here; four fifths of what is free may be taken."""
    bundle = opened(bundle_context=8192).bundle
    free = (bundle.weights.path.stat().st_size + 16 * tokens) / 0.8
    monkeypatch.setattr(sizing, "available_memory", lambda: int(free) + 1)
    options = RuntimeOptions(runtime="scripted", context="auto")
    if context is None:
        with pytest.raises(OptionError, match=r"for a context of 256 0 MB, and 0 MB of memory are free"):
            Pipeline(bundle, options)
    else:
        with Pipeline(bundle, options) as pipeline:
            assert pipeline.runtime.layout.context == context
    assert describe(bundle, RuntimeOptions(runtime="scripted"))["memory"]["auto"] == context
