"""Gates: what a bundle must reach to be published, as conditions on its quality report.

    kl<=0.12,top1>=0.80
    code.kl<=0.2,worst.top1>=0.75,int8.kl<=0.13,bits<=5

A name is a metric, or a metric of a scope. Without a scope it is the mean over the report's texts, in a quick report
the figure of its short comparison, which has kl and top1 alone. All are of the runtime that `auto` picks, against the
source's weights.
"""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edge.errors import GateError, OptionError
from edge.measured import Closeness, Measured, Measurement
from edge.quality import QualityReport
from exporters import quality
from exporters.payload_writer import storage_error
from exporters.report.texts import DOMAINS

Mode = Literal["quick", "full"]
MODES: tuple[Mode, ...] = ("quick", "full")


def _rows_of(text: str, measured: Measured) -> list[Measurement]:
    return [row for row in measured.short() if row.text == text]


# Metric of a row → its value; None where the row lacks it.
_METRICS: Mapping[str, Callable[[Measurement, Closeness], float | None]] = {
    "kl": lambda row, found: found.mean_kl,
    "p99": lambda row, found: found.p99_kl,
    "top1": lambda row, found: found.top1,
    "top5": lambda row, found: found.top5,
    "perplexity": lambda row, found: row.perplexity / found.perplexity,
    "copied": lambda row, found: found.copies.own / found.copies.other if found.copies and found.copies.other else None,
    "greedy": lambda row, found: found.greedy.agreed if found.greedy else None,
}
_WHOLE: Mapping[str, Callable[[QualityReport], float]] = {
    "bits": lambda report: report.bits,
    "mb": lambda report: report.size / 1e6,
}
_QUICK = ("kl", "top1", *_WHOLE)
_SCOPES: Mapping[str, Callable[[Measured], Sequence[Measurement]]] = {
    "": lambda measured: measured.short(),
    "worst": lambda measured: measured.short(),
    "long": lambda measured: measured.long(),
    "int8": lambda measured: measured.short("int8"),
    **{name: functools.partial(_rows_of, name) for name in DOMAINS},
}
_RELATIONS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt,
}  # fmt: skip
_CONDITION = re.compile(r"\s*(?:([a-z0-9]+)\.)?([a-z0-9]+)\s*(<=|>=|<|>)\s*([0-9.]+(?:e-?[0-9]+)?)\s*")


@dataclass(frozen=True, slots=True)
class Condition:
    scope: str
    metric: str
    relation: str
    limit: float

    def __str__(self) -> str:
        return f"{self.scope}{'.' if self.scope else ''}{self.metric}{self.relation}{self.limit:g}"

    @property
    def is_quick(self) -> bool:
        """Whether a quick report has it."""
        return not self.scope and self.metric in _QUICK

    def value(self, report: QualityReport) -> float | None:
        """None where the report does not tell it."""
        if self.metric in _WHOLE:
            return _WHOLE[self.metric](report)
        if report.measured is None:
            total = report.parity.total if report.parity is not None and self.is_quick else None
            return None if total is None else {"kl": total.mean_kl, "top1": total.top1}[self.metric]
        rows = _SCOPES[self.scope](report.measured)
        values = [_METRICS[self.metric](row, row.against) for row in rows if row.against is not None]
        known = [value for value in values if value is not None]
        if not known:
            return None
        if self.scope == "worst":
            return max(known) if self.relation.startswith("<") else min(known)
        return sum(known) / len(known)


def parse(text: str) -> tuple[Condition, ...]:
    """Conditions with commas between them. Raises OptionError."""
    return tuple(map(_parse, text.split(",")))


def _parse(item: str) -> Condition:
    match, told = _CONDITION.fullmatch(item), item.strip()
    if not match:
        raise OptionError(f"{told!r} is no condition; write such as kl<=0.12 or code.top1>=0.8; {_names()}")
    scope, metric, relation, number = match[1] or "", match[2], match[3], match[4]
    if scope not in _SCOPES or not (metric in _METRICS or (metric in _WHOLE and not scope)):
        raise OptionError(
            f"{told!r} is no condition: nothing is called {match[0][: match.start(3)].strip()}; {_names()}"
        )
    try:
        limit = float(number)
    except ValueError as error:
        raise OptionError(f"{told!r} is no condition: {number!r} is no number") from error
    if not math.isfinite(limit):
        raise OptionError(f"{told!r} is no condition: its limit is not finite")
    return Condition(scope, metric, relation, limit)


def _names() -> str:
    scopes = ", ".join(scope for scope in _SCOPES if scope)
    return f"metrics are {', '.join([*_METRICS, *_WHOLE])}; before one, with a dot, may stand {scopes}"


def mode(conditions: Sequence[Condition], asked: str | None) -> Mode:
    """How thorough the report is: as asked, else as the conditions need it. Raises OptionError for a contradiction."""
    needy = [condition for condition in conditions if not condition.is_quick]
    if asked is None:
        return "full" if needy else "quick"
    for known in MODES:
        if asked == known:
            if needy and known == "quick":
                raise OptionError(f"a quick report does not tell {needy[0]}; ask for a full one, or leave it out")
            return known
    raise OptionError(f"unknown report {asked!r}; known are {', '.join(MODES)}")


def check(conditions: Sequence[Condition], report: QualityReport, target: Path, name: str) -> None:
    """Raise GateError unless the report meets all conditions; it is then written beside the target.

    Raises StorageError where that cannot be.
    """
    failed = []
    for item in conditions:
        value = item.value(report)
        if value is None:
            failed.append(f"{item} asked for, and that was not compared with the source")
        elif not _RELATIONS[item.relation](value, item.limit):
            failed.append(f"{item} asked for, {value:.4g} reached")
    if failed:
        path = target.with_suffix(".quality.json")
        try:
            quality.write(report, path, name)
        except OSError as error:
            needed = sum(map(len, quality.contents(report, path, name).values()))
            raise storage_error(error, path, needed) from error
        raise GateError(f"the gate failed: {'; '.join(failed)}; nothing was published, and the report is {path}")
