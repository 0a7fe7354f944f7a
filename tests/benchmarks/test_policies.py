"""The policies' benchmarks on the scripted runtime: what they count, and what they leave out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edge
from benchmarks import endurance, policies
from benchmarks.workers import policy as worker
from runtimes import scripted

TEXT = "all the words that there are " * 200


def opened(tmp_path: Path, *answers: str, **options: Any) -> edge.Pipeline:
    bundle = scripted.write_bundle(tmp_path / "x.dsedge", answers)
    return edge.Pipeline(bundle, edge.RuntimeOptions(runtime="scripted", sequences=2, **options))


def test_perplexity_is_that_of_each_next_token() -> None:
    """Logits that give the right token 1/4, 1/2, and 1/4 of 4."""

    class Fed:
        def step(self, tokens: list[int]) -> Any:
            return np.log(np.array([[0.5, 0.25, 0.125, 0.125], [0.25, 0.25, 0.25, 0.25]][tokens[0] % 2]))

    first = np.log(np.array([0.25, 0.25, 0.25, 0.25]))
    session: Any = Fed()
    assert endurance.perplexity(session, first, [2, 0, 1]) == pytest.approx((4 * 2 * 4) ** (1 / 3))


def test_marks_look_at_a_copy_and_at_a_cold_start(tmp_path: Path) -> None:
    with opened(tmp_path, "x", context=40, policy="sliding", chunk=16) as pipeline:
        ids = list(TEXT.encode()[:200])
        found = endurance.run(pipeline.runtime, ids, [60, 120], 20)
        assert [mark.tokens for mark in found] == [60, 120]
        assert all(mark.warm == mark.cold > 1 for mark in found)  # the script answers the same, whatever is seen
        plain, behind = endurance.prompt_rates(pipeline, ids, 1)
        assert min(plain, behind) > 0


def test_needles_are_counted_or_refused(tmp_path: Path) -> None:
    with opened(tmp_path, "4831.", "1234", context=300) as pipeline:
        ids = pipeline.tokenizer.encode(TEXT)
        assert worker.needles(pipeline, ids, 280, 0.5) == 1
        assert worker.needles(pipeline, ids, 301, 0.5) is None


@pytest.mark.parametrize(("policy", "read", "dropped"), [("error", 256, 0), ("sliding", 399, 192), ("evict", 399, 192)])
def test_reading_goes_as_far_as_the_policy_does(policy: str, read: int, dropped: int, tmp_path: Path) -> None:
    with opened(tmp_path, "x", context=256, policy=policy, chunk=64) as pipeline:
        found = worker.reading(pipeline, pipeline.tokenizer.encode(TEXT)[:400], 256, 2)
    assert found["tokens"] == (read if policy == "error" else read + 3)
    assert (found["perplexity"] is None, found["decode"] is None) == (policy == "error", policy == "error")
    assert found["held"] <= (5 if policy == "evict" else 9) * 64 * 16
    assert found["dropped"] == dropped or policy == "sliding"


def test_tables_say_what_was_refused() -> None:
    costs = dict.fromkeys(("perplexity", "prefill", "decode"))
    needles = {f"64 {place}": None for place in policies.PLACES}
    error = {"needles": needles, "tokens": 64, "dropped": 0, **costs, "held": 1_000_000, "own": 0, "file": 0}
    found = {"error": error}
    assert policies.needle_table(found, [64], "t").rows == (("error", "refused", "refused", "refused"),)
    assert policies.cost_table(found, "t", ()).rows == (
        ("error", "64", "0", "refused", "refused", "refused", "1.0", "0", "0"),
    )
