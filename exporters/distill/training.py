"""The steps of distillation: batches in a seeded order, the divergence from the float model, a rate that fades."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from edge.graph import Graph
from exporters.distill.states import States
from exporters.distill.student import Student
from exporters.distill.teacher import Teacher, hidden, logits

SEED = 0
_RAMP = 0.125  # of the steps


@dataclass(frozen=True, slots=True)
class Course:
    """How long is trained, and how fast.

    steps   how many
    batch   samples a step
    travel  how far a code would move, in quanta, if all steps pushed it one way
    """

    steps: int
    batch: int
    travel: float

    def rate(self, step: int) -> float:
        """Quanta by which a step moves a code: `travel` in all, a ramp and then half a cosine down to nothing.

        The ramp is there because Adam's first directions are the signs of a single gradient.
        """
        shape = [
            min(1.0, (index + 1) / (_RAMP * self.steps)) * (1 + math.cos(math.pi * (index + 0.5) / self.steps))
            for index in range(self.steps)
        ]
        return self.travel * shape[step] / sum(shape)

    def batches(self, samples: int) -> Iterator[Tensor]:
        """Which samples each step takes: all of them in a drawn order, then all again in another one."""
        generator = torch.Generator().manual_seed(SEED)
        waiting = torch.empty(0, dtype=torch.int64)
        for _ in range(self.steps):
            while len(waiting) < self.batch:
                waiting = torch.cat(
                    [waiting, torch.randperm(samples, generator=generator, device="cpu").to(waiting.device)]
                )
            yield waiting[: self.batch]
            waiting = waiting[self.batch :]


@dataclass(frozen=True, slots=True)
class Lesson:
    """The model that learns and the one that it learns from; `samples` of ids [samples, length]."""

    graph: Graph
    student: Student
    teacher: Teacher
    samples: Tensor

    def divergence(self, index: Tensor) -> Tensor:
        """Mean KL(float model ‖ student), in nats, over some samples and the tokens that the teacher compares."""
        expected = self.teacher.log_probabilities(index)
        states = hidden(self.graph, self.student.weight, self.samples[index])
        found = logits(self.graph, self.student.weight, states, self.teacher.tokens).log_softmax(dim=1)
        return (expected.exp() * (expected - found)).sum(dim=1).mean()

    def examine(self, index: Tensor) -> float:
        """The divergence on samples, one at a time, without learning from them."""
        with torch.no_grad():
            return float(torch.stack([self.divergence(one) for one in index[:, None]]).mean())

    def train(self, index: Tensor, course: Course, *, states: States | None, progress: Callable[[float], None]) -> None:
        """Go through the course on the samples `index`, from where `states` left it."""
        learned = self.student.learned
        first = 0 if states is None else states.load(self.student)
        for step, batch in enumerate(course.batches(len(index))):
            if step < first:
                continue
            loss = self.divergence(index[batch])
            loss.backward()  # type: ignore[no-untyped-call]
            for item in learned.values():
                if item.value.grad is not None:
                    item.update(course.rate(step), step)
            if states is not None:
                states.save(self.student, step + 1, last=step + 1 == course.steps)
            progress((step + 1) / course.steps)
