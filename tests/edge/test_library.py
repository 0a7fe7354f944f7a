"""What a program expects of the library: awaited answers, logprobs, results as JSON, models by name, clear refusals."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edge
from edge.errors import OptionError
from edge.options import GenerateOptions
from edge.pipeline import Pipeline
from edge.sampling import Logprob, Sampler
from runtimes.scripted import write_bundle
from tests.edge.scripted import FOX, OpenScripted, runtime

# --- asyncio ------------------------------------------------------------------------------------------------------


async def collect(pipeline: Pipeline, prompt: str) -> str:
    return "".join([piece async for piece in pipeline.stream(prompt)])


def test_an_answer_is_awaited_piece_by_piece(opened: OpenScripted) -> None:
    pipeline = opened()

    async def main() -> tuple[list[str], int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0)
                ticks += 1

        other = asyncio.create_task(tick())
        stream = pipeline.stream("hi")
        pieces = [piece async for piece in stream]
        other.cancel()
        assert stream.result is not None
        assert stream.result.text == FOX
        return pieces, ticks

    pieces, ticks = asyncio.run(main())
    assert pieces == list(FOX)
    assert ticks > len(FOX)  # the loop went on while the model computed


def test_many_tasks_each_get_a_whole_answer(opened: OpenScripted) -> None:
    """More than a pool of threads would have: none of those that wait keeps the one that steps from going on."""
    answers = [f"answer number {i}" for i in range(50)]
    pipeline = opened(*answers)

    async def main() -> list[str]:
        return await asyncio.gather(*(collect(pipeline, "hi") for _ in answers))

    assert sorted(asyncio.run(main())) == sorted(answers)


def test_a_task_that_is_cancelled_ends_its_answer(opened: OpenScripted) -> None:
    pipeline = opened("x" * 2000, "ok", bundle_delay_s=0.01)

    async def main() -> None:
        stream = pipeline.stream("hi")
        begun = asyncio.Event()

        async def read() -> None:
            async for _ in stream:
                begun.set()

        task = asyncio.create_task(read())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert stream.result is not None
        assert stream.result.finish_reason == "cancel"
        assert await collect(pipeline, "hi") == "ok"

    asyncio.run(main())


def test_a_task_reads_several_answers_by_turns(opened: OpenScripted) -> None:
    pipeline = opened("one", "two")

    async def main() -> None:
        first = pipeline.stream("a").adeltas()
        assert (await anext(first)).text == "o"
        assert await collect(pipeline, "b") == "two"
        assert "".join([delta.text async for delta in first]) == "ne"

    asyncio.run(main())


def test_an_error_of_a_step_reaches_the_task(opened: OpenScripted) -> None:
    pipeline = opened("abc", bundle_fail_at=2)
    with pytest.raises(edge.InternalError, match="not finite"):
        asyncio.run(collect(pipeline, "hi"))


# --- logprobs -----------------------------------------------------------------------------------------------------


def test_logprobs_are_those_of_the_models_own_distribution() -> None:
    logits = (np.random.default_rng(0).standard_normal(300) * 3).astype(np.float32)
    options = GenerateOptions(top_logprobs=5, temperature=0.1, logit_bias={7: 50.0}, repetition_penalty=2.0, seed=0)
    found = Sampler(options, 300).logprob(logits, 7)
    exact = logits.astype(np.longdouble)
    expected = exact - np.log(np.exp(exact).sum())
    best = np.argsort(-expected)[:5]
    assert found.logprob == pytest.approx(float(expected[7]), abs=1e-12)
    assert [token for token, _ in found.top] == best.tolist()
    assert [value for _, value in found.top] == pytest.approx(expected[best].astype(float).tolist(), abs=1e-12)


def test_logprobs_leave_out_rows_without_a_token_and_tell_ties_in_order() -> None:
    logits = np.zeros(8, np.float32)
    logits[[3, 7]] = 5.0  # neither is a token
    found = Sampler(GenerateOptions(top_logprobs=20), 8, padded=(3, 7)).logprob(logits, 2)
    assert found == Logprob(
        2, pytest.approx(-np.log(6)), tuple((i, pytest.approx(-np.log(6))) for i in (0, 1, 2, 4, 5, 6))
    )


def test_results_have_logprobs_where_they_are_asked_for(opened: OpenScripted) -> None:
    """The script's next token has a logit of 10, every other 0."""
    pipeline = opened("ab")
    alone = -np.log(1 + (pipeline.bundle.spec.vocab_size - 1) * np.exp(-10.0))
    assert pipeline.complete("hi").logprobs is None
    result = pipeline.complete("hi", GenerateOptions(top_logprobs=1))
    assert result.logprobs is not None
    assert [(item.id, item.top[0][0]) for item in result.logprobs] == [(97, 97), (98, 98)]
    assert [item.logprob for item in result.logprobs] == pytest.approx([alone] * 2)
    event = next(pipeline.tokens(pipeline.encode("hi"), GenerateOptions(top_logprobs=0)))
    assert event.logprob == Logprob(97, pytest.approx(alone), ())


# --- results, models, refusals ------------------------------------------------------------------------------------


def test_a_result_is_json_by_its_fields(opened: OpenScripted) -> None:
    found = opened().complete("hi", GenerateOptions(seed=5, top_logprobs=0, temperature=0.5)).to_dict()
    assert json.loads(json.dumps(found)) == found
    assert (found["text"], found["tokens"], found["tool_calls"]) == (FOX, list(FOX.encode()), [])
    assert (found["sampling"]["temperature"], found["seed"], found["logprobs"][0]["id"]) == (0.5, 5, ord("T"))
    assert found["stats"]["ttft_s"] > 0


def test_models_are_listed_from_the_store_and_the_catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSEDGE_HOME", str(tmp_path))
    (tmp_path / "models").mkdir()
    path = write_bundle(tmp_path / "models" / "mine.dsedge", [FOX]).path
    found = {entry.name: entry for entry in edge.list_models()}
    assert found["mine"] == edge.ModelEntry("mine", path)
    default = found["smollm2-135m-instruct"]
    assert (default.path, default.license, default.pinned) == (None, "Apache-2.0", True)
    assert default.download_bytes == 98_362_432  # of the GGUF file whose sum the catalogue has
    assert list(found) == sorted(found)


def test_a_model_is_pulled_into_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSEDGE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DSEDGE_CACHE", str(tmp_path / "cache"))
    bundle = write_bundle(tmp_path / "elsewhere.dsedge", [FOX])
    catalog = tmp_path / "catalog.toml"
    source = f'{{ kind = "path", path = "{bundle.path}" }}'
    catalog.write_text(
        '[models.mine]\ntitle = "Mine"\nfamily = "test"\nvariant = "sub1b"\nlicense = "MIT"\nsize = 1000\n'
        f'form = "bundle"\nsources = [{source}]\n'
    )
    stages: list[str] = []
    path = edge.pull("mine", catalog=catalog, progress=lambda stage, done: stages.append(stage))
    assert edge.open_bundle(path).manifest.spec == bundle.manifest.spec
    assert {entry.name: entry.path for entry in edge.list_models(catalog)}["mine"] == path
    assert "copy" in stages
    assert edge.pull("mine", catalog=str(catalog)) == path
    with pytest.raises(edge.UserError, match="unheard-of"):
        edge.pull("unheard-of")


def test_options_and_prompts_of_other_types_are_option_errors(opened: OpenScripted) -> None:
    pipeline = opened()
    other: Any = {"temperature": 1}
    for call in (pipeline.stream, pipeline.complete, pipeline.encode):
        with pytest.raises(OptionError, match="the options are of the type dict; they must be GenerateOptions"):
            call("hi", other)
    with pytest.raises(OptionError, match="the options are of the type dict; they must be GenerateOptions"):
        pipeline.tokens([1], other)
    with pytest.raises(OptionError, match="the options are of the type dict; they must be RuntimeOptions"):
        Pipeline(pipeline.bundle, other)
    with pytest.raises(OptionError, match="message 1 has no content"):
        pipeline.complete([{"role": "user", "content": None}, {"role": "user"}])
    wrong: Any
    for wrong in ("hi", ["h", "i"], [1.5]):
        with pytest.raises(OptionError, match="a list of ids"):
            pipeline.tokens(wrong)
    for wrong in ({"role": "user", "content": "hi"}, 5, [{"role": 5, "content": "hi"}], ["hi"]):
        with pytest.raises(OptionError):
            pipeline.stream(wrong)
    with pytest.raises(OptionError, match="has the role 'robot'"):
        pipeline.stream([{"role": "robot", "content": "hi"}])
    assert runtime(pipeline).forwards == 0
