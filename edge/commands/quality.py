"""Printing a bundle's quality report."""

from __future__ import annotations

import sys

from edge.commands import terminal
from edge.measured import Measured, Measurement
from edge.quality import LOSS_LIMIT, ParityReport, QualityReport


def print_quality(report: QualityReport) -> None:
    """The report of a manifest: the comparisons if the export made any, and its notes."""
    if report.parity is not None:
        print_comparisons(report.parity)
    if report.measured is not None:
        print_measured(report.measured)
    for note in report.notes:
        terminal.say(f"note: {terminal.visible(note)}")


def print_comparisons(report: ParityReport) -> None:
    """A row a comparison."""
    compared = [("weights against the source's", report.source)]
    for name, found in report.runtimes.items():
        compared += [
            (f"{name}, exact activations, against the reference", found.exact),
            (f"{name} against the reference", found.used),
            (f"{name} against the source's weights", found.total),
        ]
    rows = [
        (title, f"{found.mean_kl:.5f}", f"{found.top1:.1%}", f"{found.max_diff:.2g}")
        for title, found in compared
        if found is not None
    ]
    if rows:
        head = (f"logits of {report.tokens} tokens", "mean KL", "same top token", "largest difference")
        terminal.print_table(head, rows, sys.stdout)
    for name, reason in report.refused.items():
        terminal.say(f"{name} was not compared: {terminal.visible(reason)}")


_OWN = ("text", "tokens", "KV", "perplexity")
_AGAINST = ("the other's", "mean KL", "99% KL", "top 1", "top 5", "copied", "greedy agrees")


def print_measured(measured: Measured) -> None:
    """A row for each text, length and way to keep keys and values."""
    head = (*_OWN, *(_AGAINST if measured.other else ()))
    terminal.print_table(head, [_row(row) for row in measured.rows], sys.stdout)
    for name, reason in measured.refused.items():
        terminal.say(f"{name} was not measured: {terminal.visible(reason)}")


def _row(row: Measurement) -> tuple[str, ...]:
    samples = row.tokens // max(1, row.length)
    own = (terminal.visible(row.text), f"{samples} x {row.length}", row.kv, f"{row.perplexity:.2f}")
    found = row.against
    if found is None:
        return own
    copies, greedy = found.copies, found.greedy
    return (
        *own, f"{found.perplexity:.2f}", f"{found.mean_kl:.4f}", f"{found.p99_kl:.2f}", f"{found.top1:.1%}",
        f"{found.top5:.1%}", f"{copies.own:.1%}, {copies.other:.1%}" if copies else "-",
        f"{greedy.agreed:.1f} of {greedy.tokens}" if greedy else "-",
    )  # fmt: skip


def note_quality(report: QualityReport) -> None:
    """One line on stderr: what becomes of the model by the runtime that runs it; and a warning where that is much."""
    found = report.overall
    if found is None:
        terminal.note("quality: not compared with the source" + (f" ({report.notes[-1]})" if report.notes else ""))
        return
    terminal.note(
        f"quality: mean KL {found.mean_kl:.4f}, same top token {found.top1:.1%} "
        f"(runtime {found.runtime} against the source's weights, {found.text})"
    )
    if not found.mean_kl <= LOSS_LIMIT:
        terminal.note(
            f"warning: a mean KL above {LOSS_LIMIT:g}: answers will often differ from the source model's; export with "
            "--effort medium, or with more bits a weight: --recipe int8, or a recipe of your own with int8-g32-sym or "
            "float16 where it matters"
        )
