"""Putting the quality report of an export together: what became of each weight, and what there is to say about it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from edge.bundle import Bundle
from edge.quality import ParityReport, QualityReport, SchemeUse
from exporters.architectures import Model
from exporters.payload_writer import Plan
from exporters.report import page

_ZEROS = "all zeros in the source: the checkpoint may be damaged"


def weight_notes(model: Model, plans: Mapping[str, Plan], zeros: Sequence[str]) -> list[str]:
    """Notes on the model, on the sources of weights, their layouts, and those of zeros; once for all that share one."""
    told: dict[str, list[str]] = {}
    for name in plans:
        told.setdefault(model.weights[name].note, []).append(name)
    for name, plan in plans.items():
        told.setdefault(plan.choice.note, []).append(name)
    for name in zeros:
        told.setdefault(_ZEROS, []).append(name)
    told.pop("", None)
    more = {note: f" and {len(names) - 1} more" if len(names) > 1 else "" for note, names in told.items()}
    return [*model.notes, *(f"{names[0]}{more[note]}: {note}" for note, names in told.items())]


def build(
    bundle: Bundle, plans: Mapping[str, Plan], compared: ParityReport | None, notes: Sequence[str]
) -> QualityReport:
    """The report on a bundle that is written but for its manifest."""
    uses: dict[str, SchemeUse] = {}
    for name, runs in bundle.weights.runs.items():
        for run, method in zip(runs, plans[name].choice.methods, strict=True):
            use = uses.get(run.scheme, SchemeUse(0, 0, 0, 0))
            uses[run.scheme] = replace(
                use,
                tensors=use.tensors + 1,
                carried=use.carried + (method == "carry"),
                parameters=use.parameters + bundle.weights.count(run.name),
                bytes=use.bytes + bundle.weights.size(run.name),
            )
    limit = bundle.manifest.recipe.get("activation_kl")
    return QualityReport(uses, (*notes, *_parity_notes(compared, limit)), compared)


def write(report: QualityReport, path: Path, name: str) -> None:
    """Write a report on the model `name` as JSON, and a full one beside it as a page. Raises OSError."""
    for file, content in contents(report, path, name).items():
        file.write_text(content, encoding="utf-8", newline="\n")


def contents(report: QualityReport, path: Path, name: str) -> dict[Path, str]:
    """The files that `write` writes."""
    text = json.dumps(report.to_json(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    pages = {} if report.measured is None else {path.with_suffix(".html"): page.render(report, name)}
    return {path: text, **pages}


def _parity_notes(compared: ParityReport | None, limit: float | None) -> list[str]:
    """What was not compared, and which runtimes cost more than the recipe allows."""
    if compared is None:
        return ["parity was not checked: above a billion parameters run `dsedge verify`"]
    notes = []
    for name, found in compared.runtimes.items():
        if limit is not None and found.used.mean_kl > limit:
            notes.append(
                f"runtime {name} costs a mean KL of {found.used.mean_kl:.2g}, more than the {limit:g} that the recipe "
                "allows: its activations are as precise as they get"
            )
    return notes
