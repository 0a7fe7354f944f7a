"""Printing a bundle's quality report, as the exporter writes it into the manifest."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from edge.commands import terminal
from edge.errors import BundleError

# What each comparison of exporters.parity says, in the order of reading.
_COMPARISONS = {
    "source": "int4 weights against the source's",
    "exact": "exact ONNX graph against the reference",
    "decoder": "ONNX graph against the reference",
}


def print_quality(quality: Mapping[str, Any]) -> None:
    """The report of a manifest: its notes, and the comparisons if the export made any (see `exporters.parity`).

    Raises BundleError for a report that is ill-formed.
    """
    parity, notes = quality.get("parity"), quality.get("notes", [])
    if not isinstance(notes, list):
        raise BundleError("the quality report's notes are no list; the bundle is damaged")
    if parity is not None:
        print_comparisons(parity)
    for note in notes:
        terminal.say(f"note: {terminal.visible(str(note))}")


def print_comparisons(report: Mapping[str, Any]) -> None:
    """A row a comparison of the report. Raises BundleError for a report that is ill-formed."""
    try:
        rows = [
            (title, f"{found['mean_kl']:.5f}", f"{found['top1']:.1%}", f"{found['max_diff']:.2g}")
            for name, title in _COMPARISONS.items()
            if (found := report.get(name))
        ]
        tokens = report["tokens"] if rows else 0
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BundleError(f"the quality report is ill-formed: {type(error).__name__}: {error}") from error
    if rows:
        head = (f"logits of {tokens} tokens", "mean KL", "same top token", "largest difference")
        terminal.print_table(head, rows, sys.stdout)
