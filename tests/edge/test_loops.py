"""N13: an answer that says the same for 256 tokens ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.loops import LONGEST, SPAN, is_loop
from edge.options import GenerateOptions, RuntimeOptions
from edge.pipeline import Pipeline
from runtimes.scripted import write_bundle


@pytest.mark.parametrize("period", [1, 2, 7, 63, 64])
def test_n13_a_period_repeated_for_256_tokens_is_a_loop(period: int) -> None:
    prefix = list(range(1000, 1096))
    tokens = [*prefix, *(index % period for index in range(SPAN))]
    assert is_loop(tokens)
    assert not is_loop([*tokens[:-1], 7777])
    assert not is_loop(tokens[: SPAN - 1])


def test_n13_what_merely_resembles_a_loop_is_none() -> None:
    assert not is_loop([index % (LONGEST + 1) for index in range(2 * SPAN)])
    assert not is_loop(list(range(SPAN)))
    almost = [0, 1] * (SPAN // 2)
    almost[100] = 5
    assert not is_loop(almost)


def test_n13_an_answer_ends_in_its_loop_unless_ends_are_ignored(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "loop.dsedge", ["So: " + "ha " * 400], context=4096)
    with Pipeline(bundle, RuntimeOptions(runtime="scripted")) as pipeline:
        result = pipeline.complete("hi")
        # 4 tokens of beginning; the first multiple of 32 at which the latest 256 are all in the loop is 288.
        assert (result.finish_reason, result.completion_tokens) == ("loop", 288)
        assert result.text == ("So: " + "ha " * 400)[:288]
        pipeline.reset()
        result = pipeline.complete("hi", GenerateOptions(ignore_eos=True, max_tokens=500))
        assert (result.finish_reason, result.completion_tokens) == ("length", 500)
