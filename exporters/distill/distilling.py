"""Distillation of a whole payload: ask the float model, train, judge on what was held out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from edge.graph import Graph
from edge.weights import Weights
from exporters.calibration import text
from exporters.distill import budget, places, teacher
from exporters.distill.states import States
from exporters.distill.student import Student
from exporters.distill.training import SEED, Course, Lesson
from exporters.payload_writer import Plan

COURSE = Course(steps=40, batch=1, travel=0.054)
_HELD_OUT = 16  # one of so many samples is not trained on
_MOST_HELD_OUT = 8  # samples
_ASKING, _TRAINING = 0.1, 0.95  # of the progress, where these end


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a distillation did: the mean KL from the float model on samples that were held out, before and after.

    `used` is whether it came closer; if not, the payload is the one that it began with.
    """

    course: Course
    tokens: int
    before: float
    after: float

    @property
    def used(self) -> bool:
        return self.after < self.before

    def to_json(self) -> dict[str, Any]:
        course = {"steps": self.course.steps, "tokens": self.tokens, "travel": self.course.travel, "seed": SEED}
        kl = [round(self.before, 6), round(self.after, 6)]
        return {**course, "torch": str(torch.__version__), "held_out_kl": kl, "used": self.used}


def check_memory(graph: Graph, plans: Mapping[str, Plan], tokens: int) -> None:
    """Raise OptionError where the memory does not suffice for samples of so many tokens."""
    budget.check(_memory(graph, plans, tokens, min(text.LENGTH, graph.spec.context)))


def foretell(graph: Graph, plans: Mapping[str, Plan], samples: Sequence[Sequence[int]]) -> str:
    """In words, what a distillation on these samples will take."""
    length = len(samples[0])
    tokens, trained = length * len(samples), COURSE.steps * COURSE.batch * length
    seconds = budget.seconds(graph, asked=tokens, trained=trained, vocabulary=_vocabulary(graph))
    memory = _memory(graph, plans, tokens, length)
    wanted = f"{seconds / 60:.0f} minutes" if seconds >= 60 else f"{seconds:.0f} seconds"
    return f"{COURSE.steps} steps of {COURSE.batch * length} tokens, about {wanted} and {memory / 1e9:.1f} GB"


def _memory(graph: Graph, plans: Mapping[str, Plan], tokens: int, length: int) -> int:
    return budget.needed(graph, plans, tokens=tokens, batch=COURSE.batch * length, vocabulary=_vocabulary(graph))


def _vocabulary(graph: Graph) -> int:
    return min(graph.spec.vocab_size, teacher.MOST)


def distill(
    graph: Graph, plans: Mapping[str, Plan], begin: Weights, samples: Sequence[Sequence[int]], *,
    states: Path | None, progress: Callable[[float], None],
) -> tuple[Student, Outcome]:  # fmt: skip
    """What came of the payload `begin`, and how far it came.

    `states` is a file for what another run goes on from; `progress` gets the share that is done.
    """
    with places.here():
        return _distilled(graph, plans, begin, samples, states, progress)


def _distilled(
    graph: Graph, plans: Mapping[str, Plan], begin: Weights, samples: Sequence[Sequence[int]], states: Path | None,
    progress: Callable[[float], None],
) -> tuple[Student, Outcome]:  # fmt: skip
    ids = torch.tensor([list(sample) for sample in samples], dtype=torch.int64)
    asked = teacher.ask(graph, plans, ids, lambda share: progress(share * _ASKING))
    lesson = Lesson(graph, Student(graph, plans, begin), asked, ids)
    held, others = _hold_out(len(ids))
    before = lesson.examine(held)
    lesson.train(
        others,
        COURSE,
        states=None if states is None else States(states),
        progress=lambda share: progress(_ASKING + share * (_TRAINING - _ASKING)),
    )
    after = lesson.examine(held)
    progress(1.0)
    outcome = Outcome(COURSE, COURSE.steps * COURSE.batch * ids.shape[1], before, after)
    return lesson.student if outcome.used else Student(graph, plans, begin), outcome


def _hold_out(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples to judge by and samples to train on: others, unless there is only one."""
    everything = torch.arange(samples)
    held = everything[:: max(_HELD_OUT, samples // _MOST_HELD_OUT)][:_MOST_HELD_OUT]
    others = everything[~torch.isin(everything, held)]
    return held, others if len(others) else everything
