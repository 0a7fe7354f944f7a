"""Printing a bundle's quality report."""

from __future__ import annotations

import sys

from edge.commands import terminal
from edge.quality import LOSS_LIMIT, ParityReport, QualityReport


def print_quality(report: QualityReport) -> None:
    """The report of a manifest: the comparisons if the export made any, and its notes."""
    if report.parity is not None:
        print_comparisons(report.parity)
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


def note_quality(report: QualityReport) -> None:
    """One line on stderr: what becomes of the model by the runtime that runs it; and a warning where that is much."""
    parity = report.parity
    total = parity.total if parity is not None else None
    if parity is None or total is None:
        terminal.note("quality: not compared with the source" + (f" ({report.notes[-1]})" if report.notes else ""))
        return
    terminal.note(
        f"quality: mean KL {total.mean_kl:.4f}, same top token {total.top1:.1%} "
        f"(runtime {parity.auto} against the source's weights, {parity.tokens} tokens)"
    )
    if not total.mean_kl <= LOSS_LIMIT:
        terminal.note(
            f"warning: a mean KL above {LOSS_LIMIT:g}: answers will often differ from the source model's; export with "
            "--effort medium, or with more bits a weight: --recipe int8, or a recipe of your own with int8-g32-sym or "
            "float16 where it matters"
        )
