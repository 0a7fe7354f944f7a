"""The quality report of a bundle: how its weights are stored, and what that and each runtime's arithmetic cost.

It is in the manifest and in report/quality.json. The figures are the exporter's (see exporters.parity), measured on the
machine of the export; this module knows how they are told, not how they are found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from edge import tolerant
from edge.measured import Costs, Measured

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

    def __post_init__(self) -> None:
        if self.auto is not None and self.auto not in self.runtimes:
            raise ValueError(f"auto is {self.auto!r}, which is none of the runtimes")


@dataclass(frozen=True, slots=True)
class SchemeUse:
    """What is stored in a scheme: tensors (of which `carried` kept their source's codes), parameters and bytes."""

    tensors: int
    carried: int
    parameters: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Overall:
    """What becomes of the model by the runtime that `auto` picked: mean KL and top-1 agreement with the source.

    `text` says how much was read for it.
    """

    mean_kl: float
    top1: float
    runtime: str
    text: str


@dataclass(frozen=True, slots=True)
class QualityReport:
    """`notes` are lines for a person. `parity` is None where nothing was compared, and a note then says why.

    `measured` and `costs` are the full report's, None in a quick one. The manifest holds all but `costs`.
    """

    schemes: Mapping[str, SchemeUse] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    parity: ParityReport | None = None
    measured: Measured | None = None
    costs: Costs | None = None

    @property
    def size(self) -> int:
        """Bytes of the weights."""
        return sum(use.bytes for use in self.schemes.values())

    @property
    def bits(self) -> float:
        """Bits a weight, 0 where no weight is reported."""
        count = sum(use.parameters for use in self.schemes.values())
        return 8 * self.size / count if count else 0.0

    @property
    def overall(self) -> Overall | None:
        """From the full report where there is one; None where nothing was compared with the source."""
        measured = self.measured
        found = measured.overall() if measured is not None and measured.other == "source" else None
        if measured is not None and found is not None:
            tokens = sum(row.tokens for row in measured.short())
            return Overall(*found, measured.runtime, f"{tokens} tokens of {len(measured.texts)} texts")
        parity = self.parity
        if parity is None or parity.total is None:
            return None
        return Overall(parity.total.mean_kl, parity.total.top1, str(parity.auto), f"{parity.tokens} tokens")

    def summary(self) -> QualityReport:
        """What of it the manifest tells."""
        return replace(self, costs=None)

    def to_json(self) -> dict[str, Any]:
        """Its fields, and what follows from them: `bits_per_weight`, `bytes`."""
        return {**asdict(self), "bits_per_weight": self.bits, "bytes": self.size}

    @classmethod
    def from_json(cls, data: Any) -> QualityReport:
        """The inverse of `to_json`. Raises ValueError for an ill-formed report."""
        return tolerant.read(cls, data)
