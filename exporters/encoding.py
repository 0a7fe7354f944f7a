"""The weights of an export, encoded and written: rounded, calibrated, and where the effort says so distilled."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge.graph import Graph
from edge.weights import Weights
from exporters import distill
from exporters.calibration import Effort, calibrator, cost, text
from exporters.payload_writer import Plan, write_weights
from exporters.work import Work

Report = Callable[[str, float], None]
Samples = Sequence[Sequence[int]]
_BEGIN, _FINISHED, _STATES = "begin.safetensors", "finished", "states.pt"


@dataclass(frozen=True, slots=True)
class Encoded:
    """The matrices that are nothing but zeros, and what the manifest's recipe says of the way of the others."""

    zeros: tuple[str, ...]
    told: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Encoding:
    """What is encoded, and how."""

    graph: Graph
    plans: Mapping[str, Plan]
    effort: Effort

    @property
    def distills(self) -> bool:
        return self.effort.distills and distill.useful(self.plans)

    def check(self) -> None:
        """Raise what is known before the work: UnsupportedError without torch or for an op that cannot be trained,
        OptionError for a lack of memory."""
        if self.distills:
            distill.check()
            from exporters.distill import autograd, distilling  # not at the top: they import torch

            autograd.check(self.graph.ops)
            distilling.check_memory(self.graph, self.plans, self.effort.tokens)

    def write(self, path: Path, samples: Samples, work: Work, report: Report) -> Encoded:
        """Write the payload. `samples` may be empty where nothing needs any; What is whole among the intermediate
        results in `work` is not made again."""
        if not self.distills:
            return Encoded(self._begin(path, samples, work, report), {})
        from exporters.distill import distilling

        begin = work.path / _BEGIN
        if not begin.exists():
            partial = begin.with_suffix(".partial")
            self._begin(partial, samples, work, report)
            partial.replace(begin)
        layouts = {name: str(plan.choice.layout) for name, plan in self.plans.items()}
        report(f"distill: {distilling.foretell(self.graph, self.plans, samples)}", 1.0)
        report("distill", 0.0)
        student, outcome = distilling.distill(
            self.graph, self.plans, Weights(begin, self.graph.weights, layouts), samples,
            states=work.path / _STATES if work.stays else None, progress=lambda share: report("distill", share),
        )  # fmt: skip
        zeros = write_weights(path, self.graph, self.plans, lambda share: None, student.encode())
        return Encoded(zeros, {"distillation": outcome.to_json()})

    def _begin(self, path: Path, samples: Samples, work: Work, report: Report) -> tuple[str, ...]:
        """The payload without distillation."""
        if not calibrator.needed(self.plans):
            return write_weights(path, self.graph, self.plans, lambda share: report("quantize", share))
        samples = samples[:: -(-len(samples) * len(samples[0]) // text.TOKENS)]
        report(f"calibrate: {cost.foretell(self.graph, self.plans, samples)}", 1.0)
        report("calibrate", 0.0)
        finished = work.path / _FINISHED if work.stays else None
        with contextlib.closing(calibrator.encode(self.graph, self.plans, samples, work.path, finished)) as encoded:
            return write_weights(path, self.graph, self.plans, lambda share: report("calibrate", share), encoded)
