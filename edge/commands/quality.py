"""Printing a bundle's quality report, as the exporter writes it into the manifest."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from edge.commands import terminal

# What each comparison of exporters.parity says, in the order of reading.
_COMPARISONS = {
    "source": "int4 weights against the source's",
    "exact": "exact ONNX graph against the reference",
    "decoder": "ONNX graph against the reference",
}


def print_quality(quality: Mapping[str, Any]) -> None:
    """The report of a manifest: its notes, and the comparisons if the export made any."""
    print_comparisons(quality.get("parity", {}))
    for note in quality.get("notes", ()):
        terminal.say(f"note: {terminal.visible(str(note))}")


def print_comparisons(report: Mapping[str, Any]) -> None:
    """A row a comparison of the report."""
    rows = [
        (title, f"{found['mean_kl']:.5f}", f"{found['top1']:.1%}", f"{found['max_diff']:.2g}")
        for name, title in _COMPARISONS.items()
        if (found := report.get(name))
    ]
    if rows:
        head = (f"logits of {report['tokens']} tokens", "mean KL", "same top token", "largest difference")
        terminal.print_table(head, rows, sys.stdout)
