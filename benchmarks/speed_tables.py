"""What `benchmarks.speed` measured, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks import limits
from benchmarks.engines import Command, Rates, Worker
from benchmarks.tables import Table
from edge.bundle import WEIGHTS, open_bundle


@dataclass(frozen=True, slots=True)
class Group:
    """What `benchmarks.speed` found with so many threads on prompts of one length.

    `workers` and `rates` are in the order of `commands`; `bandwidth` is the bytes a second that as many threads read
    when they do nothing else.
    """

    prompt: int
    new: int
    threads: int
    commands: Sequence[Command]
    workers: Sequence[Worker]
    rates: Sequence[Rates]
    bandwidth: float

    @property
    def title(self) -> str:
        return f"{self.prompt} + {self.new} tokens, {_counted(self.threads, 'thread')}"


def speed(group: Group, rounds: int, baseline: str) -> Table:
    """The engines side by side; `baseline` is the one that ratios are to."""
    speeds = ("load ms", "TTFT ms", "prefill tok/s", "decode tok/s", "prefill ratio", "decode ratio", "paired")
    head = ("", "engine", *speeds, "idle CPU ms", "peak MB")
    rows = tuple(
        (
            command.name,
            worker.engine,
            f"{worker.load_s * 1000:.0f}",
            f"{rate.ttft_s * 1000:.0f}",
            f"{rate.prefill:.1f}",
            f"{rate.decode:.1f}",
            f"{rate.prefill_ratio:.3f}",
            f"{rate.decode_ratio:.3f}",
            f"{rate.prefill_paired:.3f} / {rate.decode_paired:.3f}",
            f"{rate.idle_cpu_s * 1000:.0f}",
            _megabytes(rate.peak_bytes),
        )
        for command, worker, rate in zip(group.commands, group.workers, group.rates, strict=True)
    )
    return Table(f"{group.title}, medians of {_counted(rounds, 'round')}", head, rows, (f"Ratios are to {baseline}.",))


def machine_limits(groups: Sequence[Group]) -> Table:
    """What dsedge's rows read in a second beside what the machine can, and their memory beside what must be held."""
    reads = ("weights MB", "KV MB", "reads GB/s", "limit GB/s", "of the limit")
    head = ("", *reads, "peak MB", "payload + KV MB", "peak / that")
    rows = []
    for group in groups:
        for command, worker, rate in zip(group.commands, group.workers, group.rates, strict=True):
            if not command.runtime:
                continue
            bundle = open_bundle(command.model)
            weights = limits.weights_read(bundle.graph, bundle.weights.size)
            seen = limits.rows_seen(bundle.spec, group.prompt + (group.new + 1) / 2)
            kv = seen * worker.kv_row_bytes
            read = rate.decode * (weights + kv)
            held = bundle.manifest.files[WEIGHTS].size + worker.kv_bytes
            rows.append(
                (
                    f"{command.name}: {group.title}",
                    _megabytes(weights),
                    _megabytes(kv),
                    f"{read / 1e9:.1f}",
                    f"{group.bandwidth / 1e9:.1f}",
                    f"{read / group.bandwidth:.1%}",
                    _megabytes(rate.peak_bytes),
                    _megabytes(held),
                    "unknown" if rate.peak_bytes is None else f"{rate.peak_bytes / held:.3f}",
                )
            )
    return Table("The limits: bytes that a token reads, and memory", head, tuple(rows))


def more_threads(groups: Sequence[Group]) -> Table:
    """Each engine's rates with the first number of threads and with the last, on prompts of the same length."""
    first, last = groups[0].threads, groups[-1].threads
    head: tuple[str, ...] = ("",)
    for kind in ("prefill", "decode"):
        head += (f"{kind}, {_counted(first, 'thread')}", _counted(last, "thread"), "ratio")
    rows = []
    for prompt in dict.fromkeys(group.prompt for group in groups):
        few, *_, many = (group for group in groups if group.prompt == prompt)
        for command, a, b in zip(few.commands, few.rates, many.rates, strict=True):
            prefill = f"{a.prefill:.1f}", f"{b.prefill:.1f}", f"{b.prefill / a.prefill:.2f}"
            decode = f"{a.decode:.1f}", f"{b.decode:.1f}", f"{b.decode / a.decode:.2f}"
            rows.append((f"{command.name}: {prompt} tokens", *prefill, *decode))
    return Table(f"From {first} to {_counted(last, 'thread')}: tok/s", head, tuple(rows))


def longer_prompts(groups: Sequence[Group]) -> Table:
    """How dsedge's time to the first token grows with the prompt, beside the operations that it takes."""
    head = (
        "",
        "TTFT ms",
        "prefill tok/s",
        "Gop with weights",
        "Gop with keys and values",
        "Gop/s",
        "time",
        "operations",
    )
    rows = []
    for threads in dict.fromkeys(group.threads for group in groups):
        same = [group for group in groups if group.threads == threads]
        for index, command in enumerate(same[0].commands):
            if not command.runtime:
                continue
            graph = open_bundle(command.model).graph
            counts = [limits.operations(graph, group.prompt) for group in same]
            for group, (weights, attention) in zip(same, counts, strict=True):
                rate = group.rates[index]
                rows.append(
                    (
                        f"{command.name}: {group.prompt} tokens, {_counted(threads, 'thread')}",
                        f"{rate.ttft_s * 1000:.0f}",
                        f"{rate.prefill:.1f}",
                        f"{weights / 1e9:.1f}",
                        f"{attention / 1e9:.1f}",
                        f"{(weights + attention) / rate.ttft_s / 1e9:.0f}",
                        f"× {rate.ttft_s / same[0].rates[index].ttft_s:.1f}",
                        f"× {(weights + attention) / sum(counts[0]):.1f}",
                    )
                )
    return Table("How the cost of a prompt grows, beside its arithmetic", head, tuple(rows))


def _megabytes(count: float | None) -> str:
    return "unknown" if count is None else f"{count / 1e6:.1f}"


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"
