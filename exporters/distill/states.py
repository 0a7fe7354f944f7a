"""What a distillation that may be broken off leaves for the next one: its state after some steps, in a file."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch

from exporters.distill.student import Student

SECONDS = 300.0  # of work at most that is lost


class States:
    """The file that holds the latest state. It is replaced as a whole, so that it is never half written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._saved = time.monotonic()

    def load(self, student: Student) -> int:
        """Take up the state if there is one; the steps that it has behind it."""
        if not self._path.exists():
            return 0
        found = torch.load(self._path, weights_only=True)
        for name, learned in student.learned.items():
            for part, values in learned.tensors().items():
                values.copy_(found["learned"][name][part])
            learned.renew()
        return int(found["steps"])

    def save(self, student: Student, steps: int, *, last: bool) -> None:
        """Put the state down if it is the last, or some time has passed."""
        if not last and time.monotonic() - self._saved < SECONDS:
            return
        state = {name: dict(learned.tensors()) for name, learned in student.learned.items()}
        fresh = self._path.with_suffix(".new")
        torch.save({"steps": steps, "learned": state}, fresh)
        os.replace(fresh, self._path)
        self._saved = time.monotonic()
