"""`dsedge bench`: how fast a bundle is on this machine."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated, cast

import typer

from edge import bench, store
from edge.commands import terminal
from edge.commands.complete import BundleArgument, KvDtypeOption, RuntimeOption
from edge.kv import KvDtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Measure prefill, decode, loading and memory.

    Medians go to stderr as a table, then to stdout as one line of JSON.
    """

    model: BundleArgument
    runtime: RuntimeOption = "auto"
    device: Annotated[str, typer.Option(metavar="NAME", help="Device of the backend.")] = "auto"
    prompt: Annotated[int, typer.Option(metavar="N", help="Random tokens of prompt.")] = 512
    new: Annotated[int, typer.Option(metavar="N", help="Tokens to generate.")] = 128
    threads: Annotated[int | None, typer.Option(metavar="N", help="CPU threads. [default: the physical cores]")] = None
    kv_dtype: KvDtypeOption = "auto"
    runs: Annotated[
        int, typer.Option(metavar="N", help="Runs to take the median of, after one that is not counted.")
    ] = 5
    json: Annotated[bool, typer.Option("--json", help="Only the JSON line.")] = False

    def execute(self) -> int:
        options = bench.BenchOptions(
            runtime=self.runtime,
            device=self.device,
            prompt=self.prompt,
            new=self.new,
            threads=self.threads,
            kv_dtype=cast(KvDtype, self.kv_dtype),
            runs=self.runs,
        )
        report = bench.bench(store.resolve(self.model), options)
        if not self.json:
            _print(report)
        terminal.print_json(report.to_json())
        return 0


def _print(report: bench.Report) -> None:
    rows = [
        (f"run {index}", f"{run.prefill_tok_s:.1f}", f"{run.decode_tok_s:.1f}", f"{run.ttft_s * 1000:.1f}")
        for index, run in enumerate(report.runs, 1)
    ]
    rows.append(("median", f"{report.prefill_tok_s:.1f}", f"{report.decode_tok_s:.1f}", f"{report.ttft_ms:.1f}"))
    peak = "unknown" if report.peak_mb is None else f"{report.peak_mb:.0f} MB"
    terminal.note(
        f"{report.model} on {report.runtime} ({report.device}), {report.threads} threads, "
        f"{report.prompt} + {report.new} tokens; loaded in {report.load_s:.2f} s, peak memory {peak}"
    )
    terminal.print_table(("", "prefill tok/s", "decode tok/s", "TTFT ms"), rows, sys.stderr)
