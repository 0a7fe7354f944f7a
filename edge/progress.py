"""How long work tells how far it is: a stage's name, the share that is done, and for what is transferred the bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Transfer:
    """Bytes that have arrived, and how many there will be, None where nobody said."""

    done: int
    total: int | None

    @property
    def share(self) -> float:
        return min(self.done / self.total, 1.0) if self.total else 0.0


class Progress(Protocol):
    """Called now and then with a stage and the share of it that is done, 0 to 1. Stages come one after another."""

    def __call__(self, stage: str, done: float, transfer: Transfer | None = None, /) -> None: ...


def report_transfer(progress: Progress, stage: str, done: int, total: int | None) -> None:
    transfer = Transfer(done, total)
    progress(stage, transfer.share, transfer)
