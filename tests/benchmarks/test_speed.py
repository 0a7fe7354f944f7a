"""What `benchmarks.speed` sets its measurements against, and its tables: hand-made figures, no model but the scripted
one, and no time is asserted."""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from benchmarks import limits, models, speed, speed_tables, synthetic
from benchmarks.engines import Command, Rates, Sample, Worker
from benchmarks.speed_tables import Group
from benchmarks.workers.dsedge import kv_rows
from edge.decoder import DecoderSpec
from edge.graph import build
from edge.kv import Pools, plan_layout
from edge.layers import Moe
from edge.runtime import Capabilities, Runtime
from runtimes import scripted
from runtimes.buffers import KvPool
from tests.specs import small_spec, with_attention

SPEC = small_spec(
    windows=(None, 8), attention={"head_dim": 2, "scale": 1.0}, mlp={"size": 6}, vocab_size=10, hidden_size=4,
)  # fmt: skip


def numbers(spec: DecoderSpec) -> dict[str, int]:
    return {weight.name: math.prod(weight.shape) for weight in build(spec).weights}


def test_a_token_reads_every_weight_but_the_embeddings_rows() -> None:
    # A layer: q and o 4 × 4, k and v 2 × 4, three of 6 × 4, two norms of 4: 128. Then a norm of 4 and the head's 40.
    untied = numbers(SPEC)
    assert sum(untied.values()) == 340
    assert limits.weights_read(build(SPEC), untied.__getitem__) == 300
    tied = replace(SPEC, tied_head=True)
    assert sum(numbers(tied).values()) == 300
    assert limits.weights_read(build(tied), numbers(tied).__getitem__) == 300
    biased = with_attention(SPEC, qkv_bias=True)
    assert limits.weights_read(build(biased), numbers(biased).__getitem__) == 300 + 2 * (4 + 2 + 2)


def test_the_large_shape_reads_what_its_config_says() -> None:
    c = synthetic.QWEN_7B
    hidden, inner, keys = c["hidden_size"], c["intermediate_size"], 128 * c["num_key_value_heads"]
    layer = hidden * (2 * hidden + 2 * keys + 3 * inner) + hidden + 2 * keys + 2 * hidden
    spec = small_spec(
        windows=(None,) * 28, attention={"heads": 28, "kv_heads": 4, "head_dim": 128, "qkv_bias": True},
        mlp={"size": inner}, vocab_size=c["vocab_size"], hidden_size=hidden,
    )  # fmt: skip
    expected = 28 * layer + hidden + c["vocab_size"] * hidden
    assert limits.weights_read(build(spec), numbers(spec).__getitem__) == expected
    assert synthetic.size(28) == 2 * (expected + c["vocab_size"] * hidden)


def test_a_token_reads_the_chosen_experts_alone() -> None:
    """Of 8 experts of 3 × 4 × 6 numbers three are chosen; the router is 8 × 4, the shared MLP 3 × 4 × 5."""
    (plain,) = small_spec(attention={"head_dim": 2}, hidden_size=4, vocab_size=10).layers
    layer = replace(plain, mlp=Moe(experts=8, top_k=3, size=6, shared_size=5))
    spec = small_spec(attention={"head_dim": 2}, hidden_size=4, vocab_size=10, layers=(layer,))
    attention, norms, head = 2 * 4 * 4 + 2 * 2 * 4, 3 * 4, 10 * 4
    expected = attention + norms + head + 8 * 4 + 3 * (3 * 4 * 6) + 3 * 4 * 5
    assert limits.weights_read(build(spec), numbers(spec).__getitem__) == expected


@pytest.mark.parametrize("prompt", [1, 7, 8, 9, 37])
def test_operations_of_a_prompt_agree_with_the_rings_own_masks(prompt: int) -> None:
    weights, attention = limits.operations(build(SPEC), prompt)
    # 120 numbers of matrices a layer, and the head once.
    assert weights == 2 * (prompt * 2 * 120 + 40)
    cache = Pools(plan_layout(SPEC, 64, chunk=64)).open()
    assert list(cache.prepare(prompt)) == []
    masks = [plan.mask(plan.unrolled()[0]) for plan in cache.plan(prompt).rings]
    pairs = sum(int(mask.sum()) for mask in masks)
    assert attention == 2 * 2 * pairs * 2 * 2  # heads of 2
    last = sum(int(mask[-1].sum()) for mask in masks)
    assert limits.rows_seen(SPEC, prompt) == last


def test_rows_of_the_cache_are_all_that_is_reserved() -> None:
    layout = plan_layout(SPEC, 40, chunk=16, sequences=3)
    extents = Capabilities(extents=True, batching=False)
    runtime = cast("Runtime", SimpleNamespace(spec=SPEC, layout=layout, capabilities=extents))
    assert kv_rows(runtime) == 3 * 2 * (64 + 16)
    row = 2 * 2 * 4  # a key and a value of 2 numbers
    assert KvPool(SPEC, layout).nbytes == pytest.approx(kv_rows(runtime) * row, abs=2 * 63)


@pytest.mark.parametrize("threads", [1, 3])
def test_reading_visits_every_byte_in_each_pass(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    real = np.max

    def noted(part: np.ndarray) -> object:
        seen.append(part.nbytes)
        return real(part)

    monkeypatch.setattr(limits, "_READ", 4000)
    monkeypatch.setattr(np, "max", noted)
    assert limits.Reader().rate(threads) > 0
    assert (len(seen), sum(seen)) == (4 * threads, 4 * 4000)


def test_speed_of_the_scripted_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = scripted.write_bundle(tmp_path / "fake.dsedge", ["x" * 40])
    line = ["speed", str(bundle.path), "--runtime", "scripted", "--markdown", "--ids", "250", "--rounds", "1"]
    line += ["--prompt", "3", "--prompt", "6", "--new", "2", "--threads", "1", "--threads", "2"]
    monkeypatch.setattr(sys, "argv", line)
    monkeypatch.setattr(speed, "_PAUSE_S", 0.0)
    monkeypatch.setattr(limits, "_READ", 4000)
    assert speed.main() == 0
    titles = [line.strip("*") for line in capsys.readouterr().out.splitlines() if line.startswith("**")]
    assert titles == [
        "3 + 2 tokens, 1 thread, medians of 1 round",
        "3 + 2 tokens, 2 threads, medians of 1 round",
        "6 + 2 tokens, 1 thread, medians of 1 round",
        "6 + 2 tokens, 2 threads, medians of 1 round",
        "The limits: bytes that a token reads, and memory",
        "From 1 to 2 threads: tok/s",
        "How the cost of a prompt grows, beside its arithmetic",
    ]


def test_each_group_has_its_own_engines_and_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fake:
        def __init__(self, seconds: float) -> None:
            self.seconds, self.prompts = seconds, list[list[int]]()

        def run(self, prompt: list[int], new: int) -> Sample:
            self.prompts.append(prompt)
            return Sample(self.seconds * len(prompt), self.seconds * new, 0.0, None)

    rate = SimpleNamespace(rate=lambda threads: threads * 100.0)
    monkeypatch.setattr(limits, "Reader", lambda: rate)
    monkeypatch.setattr(speed, "_PAUSE_S", 0.0)
    fakes = [Fake(seconds) for seconds in (1, 2, 4, 8)]
    commands = [Command(name, "", "", Path()) for name in "AB"]
    options = SimpleNamespace(seed=0, prompt=[5, 7], new=3, threads=[1, 4], rounds=2, ids=50)
    found = list(speed._measure(commands, cast("list[Worker]", fakes), cast("argparse.Namespace", options)))
    assert [(group.prompt, group.threads, group.bandwidth) for group in found] == [
        (5, 1, 100), (5, 4, 400), (7, 1, 100), (7, 4, 400),
    ]  # fmt: skip
    assert [[rate.decode for rate in group.rates] for group in found] == [[1, 1 / 2], [1 / 4, 1 / 8]] * 2
    assert [[rate.prefill_ratio for rate in group.rates] for group in found] == [[1, 1 / 2]] * 4
    assert [list(group.workers) for group in found] == [fakes[:2], fakes[2:]] * 2
    assert fakes[0].prompts == fakes[3].prompts
    assert len({tuple(prompt) for prompt in fakes[0].prompts}) == 6


def rates(ttft_s: float, decode: float) -> Rates:
    return Rates(ttft_s, 6 / ttft_s, decode, 1.0, 1.0, 1.0, 1.0, idle_cpu_s=0.0, peak_bytes=3000)


def groups(tmp_path: Path) -> list[Group]:
    """Prompts of 6 and 12 tokens on 1 and 2 threads, of a bundle and of another engine."""
    path = scripted.write_bundle(tmp_path / "fake.dsedge", ["x"]).path
    commands = [Command("ours", "", "", path, "scripted"), Command("theirs", "", "", path)]
    ours = SimpleNamespace(engine="ours", load_s=1.0, kv_bytes=1000, kv_row_bytes=16.0)
    theirs = SimpleNamespace(engine="theirs", load_s=1.0, kv_bytes=0, kv_row_bytes=0)
    workers = cast("list[Worker]", [ours, theirs])
    return [
        Group(prompt, 3, threads, commands, workers, [rates(prompt / 6, 10.0 * threads), rates(1.0, 5.0)], 1e6)
        for prompt in (6, 12)
        for threads in (1, 2)
    ]


def test_the_limit_counts_weights_and_half_of_the_new_tokens_keys(tmp_path: Path) -> None:
    found = groups(tmp_path)
    table = speed_tables.machine_limits(found[:2])
    assert [row[0] for row in table.rows] == [f"ours: 6 + 3 tokens, {n}" for n in ("1 thread", "2 threads")]
    # Float32. Vocabulary v, width 2: the head 2v; q, k, v, o and three more 4 each; three norms of 2.
    spec = scripted.write_bundle(tmp_path / "again.dsedge", ["x"]).spec
    weights = 4 * (2 * spec.vocab_size + 7 * 4 + 3 * 2)
    cache = 16 * (6 + 2)
    assert [row[5] for row in table.rows] == [f"{n * 10 * (weights + cache) / 1e6:.1%}" for n in (1, 2)]


def test_more_threads_are_compared_on_the_same_prompt(tmp_path: Path) -> None:
    table = speed_tables.more_threads(groups(tmp_path))
    assert [row[0] for row in table.rows] == [f"{who}: {n} tokens" for n in (6, 12) for who in ("ours", "theirs")]
    assert [row[6] for row in table.rows] == ["2.00", "1.00"] * 2
    assert [row[4] for row in table.rows] == ["10.0", "5.0"] * 2


def test_a_longer_prompt_is_set_against_its_operations(tmp_path: Path) -> None:
    table = speed_tables.longer_prompts(groups(tmp_path))
    assert [row[0] for row in table.rows] == [
        f"ours: {p} tokens, {n}" for n in ("1 thread", "2 threads") for p in (6, 12)
    ]
    assert [row[6] for row in table.rows] == ["× 1.0", "× 2.0"] * 2
    vocabulary = 2 * 2 * scripted.write_bundle(tmp_path / "again.dsedge", ["x"]).spec.vocab_size
    counts = [2 * n * 28 + vocabulary + 4 * 2 * n * (n + 1) // 2 for n in (6, 12)]
    assert table.rows[1][7] == f"× {counts[1] / counts[0]:.1f}"


def test_the_large_bundle_is_made_from_its_shape_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 320, "num_hidden_layers": 2}
    for key, value in {**small, "num_attention_heads": 2, "num_key_value_heads": 1}.items():
        monkeypatch.setitem(synthetic.QWEN_7B, key, value)
    monkeypatch.setattr(models, "FOLDER", tmp_path)
    path = models.large_bundle()
    made = (path / "manifest.json").stat()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [path.name]
    assert models.large_bundle() == path
    assert (path / "manifest.json").stat().st_mtime_ns == made.st_mtime_ns
