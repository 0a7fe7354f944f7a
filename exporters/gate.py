"""Gates: what a bundle must reach to be published, as conditions on its quality report.

    kl<=0.12,top1>=0.80

    kl     mean KL(source ‖ bundle), nats a token
    top1   share of positions with the source's most likely token

Both are of the runtime that `auto` picks, against the source's weights.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edge.errors import GateError, OptionError
from edge.quality import Comparison, QualityReport
from exporters.payload_writer import storage_error

_METRICS: dict[str, Callable[[Comparison], float]] = {
    "kl": operator.attrgetter("mean_kl"),
    "top1": operator.attrgetter("top1"),
}
_RELATIONS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt,
}  # fmt: skip
_CONDITION = re.compile(r"\s*([a-z0-9]+)\s*(<=|>=|<|>)\s*([0-9.]+(?:e-?[0-9]+)?)\s*")


@dataclass(frozen=True, slots=True)
class Condition:
    metric: str
    relation: str
    limit: float

    def __str__(self) -> str:
        return f"{self.metric}{self.relation}{self.limit:g}"


def parse(text: str) -> tuple[Condition, ...]:
    """Conditions with commas between them. Raises OptionError."""
    found = []
    for item in text.split(","):
        match = _CONDITION.fullmatch(item)
        if not match or match[1] not in _METRICS:
            raise OptionError(f"{item.strip()!r} is no condition; write such as kl<=0.12, with {' or '.join(_METRICS)}")
        try:
            limit = float(match[3])
        except ValueError as error:
            raise OptionError(f"{item.strip()!r} is no condition: {match[3]!r} is no number") from error
        if not math.isfinite(limit):
            raise OptionError(f"{item.strip()!r} is no condition: its limit is not finite")
        found.append(Condition(match[1], match[2], limit))
    return tuple(found)


def check(conditions: Sequence[Condition], report: QualityReport, target: Path) -> None:
    """Raise GateError unless the report meets all conditions; it is then written beside the target.

    Raises StorageError where that cannot be.
    """
    total = report.parity.total if report.parity is not None else None
    if not conditions:
        return
    if total is None:
        failed = ["nothing was compared with the source"]
    else:
        failed = [
            f"{item} asked for, {_METRICS[item.metric](total):.4g} reached"
            for item in conditions
            if not _RELATIONS[item.relation](_METRICS[item.metric](total), item.limit)
        ]
    if failed:
        path = target.with_suffix(".quality.json")
        text = json.dumps(report.to_json(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
        try:
            path.write_text(text, encoding="utf-8", newline="\n")
        except OSError as error:
            raise storage_error(error, path, len(text)) from error
        raise GateError(f"the gate failed: {'; '.join(failed)}; nothing was published, and the report is {path}")
