"""The benchmarks' own logic, with fake engines and hand-made figures; no model is run and no time is asserted."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import edge
from benchmarks import engines, fidelity, overhead, synthetic, tables, together
from benchmarks.engines import Sample, Worker, WorkerError
from benchmarks.timed_runtime import Forward
from exporters.architectures import describe
from exporters.checkpoint.open import open_checkpoint
from runtimes import scripted

COMMANDS = ("speed", "overhead", "together", "startup", "fidelity", "export", "policies", "endurance")
FAKE = """
import sys
from benchmarks.workers.loop import serve

name, log, times = sys.argv[1], sys.argv[2], iter(map(float, sys.argv[3].split(",")))

def note(text):
    with open(log, "a") as file:
        print(text, file=file)

def measure(prompt, new):
    note(f"{name} begins {len(prompt)} {new}")
    print("an engine's own chatter")
    seconds = next(times)
    note(f"{name} ends")
    return seconds, seconds * 2

serve(f"fake {name}", measure, load_s=0.5, kv_bytes=960)
"""


def fake(name: str, log: Path, times: str) -> Worker:
    return Worker(name, [sys.executable, "-c", FAKE, name, str(log), times])


def test_conversations_together_are_compared_with_the_fewest() -> None:
    rates = [together.Rates(10.0, 100.0), together.Rates(12.0, 90.0)]
    assert together.best(rates) == together.Rates(12.0, 100.0)
    rows = together.rows_of("x", {4: together.Rates(30.0, 90.0), 1: together.best(rates)})
    assert rows == (("x", "1", "12", "1.00", "100", "1.00"), ("x", "4", "30", "2.50", "90", "0.90"))


def test_conversations_are_measured_without_the_time_to_their_first_tokens() -> None:
    asked = []

    def seconds(prompts: Sequence[Sequence[int]], new: int) -> float:
        asked.append(([len(prompt) for prompt in prompts], new))
        return sum(map(len, prompts)) / 1000 + 0.25 * (new - 1)

    rates = together.measure(seconds, 4, prompt=100, new=8, seed=1)
    assert asked == [([16] * 4, 9), ([16] * 4, 1), ([100] * 4, 1)]
    assert rates == together.Rates(pytest.approx(4 * 8 / 2.0), pytest.approx(1000))


def test_every_conversation_is_computed_to_its_end(tmp_path: Path) -> None:
    bundle = scripted.write_bundle(tmp_path / "x.dsedge", ["y" * 99])
    with edge.Pipeline(bundle, edge.RuntimeOptions(runtime="scripted", context=1024)) as pipeline:
        prompts = [[i, 5, 6] for i in range(3)]
        assert together.seconds_of(pipeline, prompts, 7, clock=time.perf_counter) > 0
        assert sorted(len(session.tokens) for session in pipeline._readers.engine.residents._idle) == [3 + 6] * 3


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    line = [sys.executable, "-m", f"benchmarks.{command}", "--help"]
    done = subprocess.run(line, capture_output=True, text=True, cwd=engines.ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert f"python -m benchmarks.{command}" in done.stdout
    assert "--markdown" in done.stdout


def test_engines_take_turns_and_the_first_round_is_left_out(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with fake("A", log, "9,1,2") as a, fake("B", log, "9,3,4") as b:
        assert (a.engine, b.engine) == ("fake A", "fake B")
        assert (a.load_s, a.kv_bytes, a.kv_row_bytes) == (0.5, 960, 0)
        found = list(engines.rounds([a, b], [[1, 2, 3], [4, 5, 6], [7, 8, 9]], 4))
    turn = ["A begins 3 4", "A ends", "B begins 3 4", "B ends"]
    assert log.read_text().splitlines() == turn * 3
    assert [[sample.prefill_s for sample in samples] for samples in found] == [[1, 3], [2, 4]]
    assert [samples[1].decode_s for samples in found] == [6, 8]


def test_a_worker_that_ends_is_named(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match=r"lost: .* exit code 3"):
        Worker("lost", [sys.executable, "-c", "raise SystemExit(3)"])
    with fake("short", tmp_path / "log", "1") as worker:
        worker.run([1], 1)
        with pytest.raises(WorkerError, match="short: "):
            worker.run([1], 1)


def test_medians_and_both_kinds_of_ratio() -> None:
    def samples(prefill: list[float], decode: list[float]) -> list[Sample]:
        peaks = [100 + n for n in range(len(prefill))]
        return [Sample(p, d, 1.0, peak) for p, d, peak in zip(prefill, decode, peaks, strict=True)]

    # 100 prompt tokens: 100, 50, 25 tok/s against 20, 50, 100; 10 new: 10, 5, 2 against 10 each.
    given = [samples([1, 2, 4], [1, 2, 5]), samples([5, 2, 1], [1, 1, 1])]
    ours, theirs = engines.compare(given, 1, 100, 10)
    assert (ours.ttft_s, ours.prefill, ours.decode) == (2, 50, 5)
    assert (ours.prefill_ratio, ours.decode_ratio) == (1.0, 0.5)
    assert (ours.prefill_paired, ours.decode_paired) == (1.0, 0.5)
    assert (ours.idle_cpu_s, ours.peak_bytes) == (1.0, 102)
    assert (theirs.prefill_ratio, theirs.decode_paired) == (1, 1)
    # Rounds that swing together: medians 50 and 40, the rounds' own ratios 100/40, 50/50, 25/20.
    together = [samples([1, 2, 4], [1, 1, 1]), samples([2.5, 2, 5], [1, 1, 1])]
    ours, _ = engines.compare(together, 1, 100, 10)
    assert (ours.prefill_ratio, ours.prefill_paired) == (1.25, 1.25)
    lucky = [samples([1, 2, 4], [1, 1, 1]), samples([2, 1, 3], [1, 1, 1])]
    ours, _ = engines.compare(lucky, 1, 100, 10)
    assert (ours.prefill_ratio, ours.prefill_paired) == (1.0, 0.75)


def test_a_step_counts_what_lies_between_forwards() -> None:
    # A prompt's forward to 10, then forwards of 3 and 5 seconds with 1 and 2 seconds before them.
    forwards = [Forward(0.0, 10.0, 10.0), Forward(11.0, 14.0, 3.0), Forward(16.0, 21.0, 5.0)]
    step = overhead.step_of(forwards)
    assert (step.total, step.forward) == (5.5, 4.0)
    assert step.share == pytest.approx(3 / 11)


def test_steps_of_several_answers_are_those_while_all_of_them_go_on() -> None:
    forwards = [Forward(n, n + 0.5, 0.5, sequences) for n, sequences in enumerate([1, 2, 3, 2, 3, 3, 1])]
    assert overhead.of_all(forwards, 3) == forwards[2:6]


def test_distance_agrees_with_torch() -> None:
    random = np.random.default_rng(0)
    shape = (2, fidelity.LENGTH, 50)
    reference, found = (random.normal(0, 3, shape).astype(np.float32) for _ in range(2))
    ids = random.integers(0, 50, shape[:2])
    distance = fidelity.Distance()
    for index in range(2):
        distance.add(reference[index], found[index], ids[index].tolist())
    a, b = (torch.log_softmax(torch.from_numpy(x).double(), -1) for x in (reference, found))
    kl = torch.nn.functional.kl_div(b, a, reduction="none", log_target=True).sum(-1)[:, 64:]
    assert distance.mean_kl == pytest.approx(kl.mean().item(), rel=1e-7)
    assert distance.p99_kl == pytest.approx(kl.quantile(0.99).item(), rel=1e-7)
    assert distance.top1 == pytest.approx((a.argmax(-1) == b.argmax(-1))[:, 64:].double().mean().item())
    losses = [torch.nn.functional.nll_loss(b[i, :-1], torch.from_numpy(ids[i, 1:])) for i in range(2)]
    assert distance.perplexity == pytest.approx(torch.stack(losses).mean().exp().item(), rel=1e-7)


def test_the_shipped_text_is_enough_and_reads_as_plain_text(tmp_path: Path) -> None:
    parts = fidelity.chunks(scripted.write_bundle(tmp_path / "fake.dsedge", ["x"]))
    assert [len(part) for part in parts] == [512] * 8
    text = b"".join(bytes(part) for part in parts).decode("utf-8", "replace")
    assert "had a guest-starring role" in text
    assert not any(mark in text for mark in ("@-@", "@,@", "@.@", "<unk>"))


def test_a_synthetic_checkpoint_has_other_numbers_in_every_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in (
        ("hidden_size", 64),
        ("intermediate_size", 128),
        ("vocab_size", 320),
        ("num_attention_heads", 4),
        ("num_key_value_heads", 2),
    ):
        monkeypatch.setitem(synthetic.QWEN_7B, key, value)
    parameters = synthetic.write(tmp_path, 9)
    assert synthetic.size(9) == 2 * parameters
    with closing(open_checkpoint(tmp_path)) as checkpoint:
        model = describe(checkpoint)
        last = model.weights["layers.8.attn.q"].read()
    assert len(model.spec.layers) == 9
    stored = {name: tensor for file in tmp_path.glob("*.safetensors") for name, tensor in load_file(file).items()}
    assert sum(tensor.numel() for tensor in stored.values()) == parameters
    queries = [stored[f"model.layers.{layer}.self_attn.q_proj.weight"].float() for layer in range(9)]
    assert all(not torch.equal(queries[0], other) for other in queries[1:])
    every = torch.cat([tensor.float().flatten() for tensor in stored.values()]).abs()
    assert 2**-11 <= every.min() < 2**-10 < 2**-8 < every.max() < 2**-7
    assert len(queries[0].unique()) > 500
    np.testing.assert_array_equal(last, queries[8].numpy())


def test_tables() -> None:
    table = tables.Table("Speed", ("", "tok/s"), (("ours", "9.5"), ("a peer", "100.0")), ("note",))
    assert table.render(markdown=False) == "Speed\n        tok/s\nours      9.5\na peer  100.0\nnote"
    rows = "|  | tok/s |\n| --- | ---: |\n| ours | 9.5 |\n| a peer | 100.0 |"
    assert table.render(markdown=True) == f"**Speed**\n\n{rows}\n\nnote"
