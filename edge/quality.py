"""The quality report of a bundle: how its weights are stored, and what that and each runtime's arithmetic cost.

It is in the manifest and in report/quality.json. The figures are the exporter's (see exporters.parity), measured on the
machine of the export; this module knows how they are told, not how they are found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

Record = TypeVar("Record")
# The mean KL, in nats a token, past which answers differ from the source's often enough to be warned of.
LOSS_LIMIT = 0.1


@dataclass(frozen=True, slots=True)
class Comparison:
    """Logits of a model against those of a reference, over the report's tokens.

    max_diff, deviation  largest difference of a logit, and the reference's standard deviation
    mean_kl              KL(reference ‖ model), nats a token
    top1                 share of positions with the same most likely token
    """

    max_diff: float
    deviation: float
    mean_kl: float
    top1: float


@dataclass(frozen=True, slots=True)
class RuntimeQuality:
    """A runtime of the machine, running the bundle.

    exact   with float activations, against the reference interpreter on the bundle's weights: it must agree
    used    as it is used, against the same: what its arithmetic costs
    total   as it is used, against the source's own weights: what becomes of the model; None where there is no source
    """

    exact: Comparison
    used: Comparison
    total: Comparison | None = None


@dataclass(frozen=True, slots=True)
class ParityReport:
    """Comparisons on `tokens` tokens of a text.

    `source` is the bundle's weights against the source's own, None where there is no source. `auto` is the runtime that
    `auto` picked on that machine, None where none of `runtimes` was. `refused` says why the other runtimes that the
    bundle is for did not run it there.
    """

    tokens: int
    runtimes: Mapping[str, RuntimeQuality]
    auto: str | None = None
    source: Comparison | None = None
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def total(self) -> Comparison | None:
        """What becomes of the model by the runtime that `auto` picked."""
        return self.runtimes[self.auto].total if self.auto is not None else None

    @classmethod
    def from_json(cls, data: Any) -> ParityReport:
        """Raises ValueError for an ill-formed report."""
        report = _record(cls, data, runtimes=_table(_runtime), source=_optional(_comparison), refused=_table(_text))
        if type(report.tokens) is not int or report.tokens < 0:
            raise ValueError(f"tokens is {report.tokens!r}")
        if report.auto is not None and report.auto not in report.runtimes:
            raise ValueError(f"auto is {report.auto!r}, which is none of the runtimes")
        return report


@dataclass(frozen=True, slots=True)
class SchemeUse:
    """What is stored in a scheme: tensors (of which `carried` kept their source's codes), parameters and bytes."""

    tensors: int
    carried: int
    parameters: int
    bytes: int


@dataclass(frozen=True, slots=True)
class QualityReport:
    """`notes` are lines for a person. `parity` is None where nothing was compared, and a note then says why."""

    schemes: Mapping[str, SchemeUse] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    parity: ParityReport | None = None

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "notes": list(self.notes)}

    @classmethod
    def from_json(cls, data: Any) -> QualityReport:
        """The inverse of `to_json`. Raises ValueError for an ill-formed report."""
        return _record(cls, data, schemes=_table(_use), notes=_texts, parity=_optional(ParityReport.from_json))


def _record(kind: type[Record], data: Any, **readers: Callable[[Any], Any]) -> Record:
    if not isinstance(data, dict):
        raise ValueError(f"{kind.__name__} is {type(data).__name__}, no table")
    known = {item.name for item in fields(kind)}  # type: ignore[arg-type]
    values = {name: value for name, value in data.items() if name in known}  # a later version may tell more
    try:
        return kind(**{name: readers[name](value) if name in readers else value for name, value in values.items()})
    except TypeError as error:
        raise ValueError(f"{kind.__name__}: {error}") from error


def _table(read: Callable[[Any], Record]) -> Callable[[Any], dict[str, Record]]:
    def table(data: Any) -> dict[str, Record]:
        if not isinstance(data, dict):
            raise ValueError(f"{type(data).__name__} where a table is needed")
        return {name: read(item) for name, item in data.items()}

    return table


def _optional(read: Callable[[Any], Record]) -> Callable[[Any], Record | None]:
    return lambda data: None if data is None else read(data)


def _texts(data: Any) -> tuple[str, ...]:
    if not isinstance(data, list) or not all(isinstance(item, str) for item in data):
        raise ValueError("the notes are no list of texts")
    return tuple(data)


def _text(data: Any) -> str:
    if not isinstance(data, str):
        raise ValueError(f"{data!r} is no text")
    return data


def _comparison(data: Any) -> Comparison:
    found = _record(Comparison, data)
    for name, value in asdict(found).items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{name} is {value!r}, no number")
    return found


def _runtime(data: Any) -> RuntimeQuality:
    return _record(RuntimeQuality, data, exact=_comparison, used=_comparison, total=_optional(_comparison))


def _use(data: Any) -> SchemeUse:
    found = _record(SchemeUse, data)
    for name, value in asdict(found).items():
        if type(value) is not int or value < 0:
            raise ValueError(f"{name} is {value!r}, no count")
    return found
