"""How far a model's logits are from a reference's: KL divergence, agreement and perplexity over some texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from exporters import threads

FIRST = 64  # positions of a sample before which nothing is compared: there is little context there
_ROWS = 32  # rows that a thread compares at a time
_TOP = 5

Logits = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rows:
    """A comparison row by row: KL(reference ‖ model), the most likely tokens, whether the reference's is among the
    model's first five, and what each model loses on the token that follows, in nats."""

    kl: Floats
    top: Ids
    reference_top: Ids
    among: npt.NDArray[np.bool_]
    loss: Floats
    reference_loss: Floats


class Distance:
    """What a model's logits on some samples say about it, next to a reference's."""

    def __init__(self) -> None:
        self._rows: list[Rows] = []  # of every position but each sample's last, whose next token is not known
        self._kl: list[Rows] = []  # of those positions that are compared
        self._positions: list[Ids] = []

    def add(self, reference: Logits, found: Logits, ids: Sequence[int], start: int = 0) -> Rows:
        """Logits of a sample's tokens from `start` on, [tokens, vocab] each; `ids` are those of the whole sample."""
        stop = start + len(found)
        targets = np.asarray([*ids[start + 1 : stop + 1], *([0] if stop == len(ids) else [])])
        rows = compare(reference, found, targets)
        self._rows.append(_part(rows, 0, len(ids) - 1 - start))
        self._kl.append(_part(rows, max(0, FIRST - start), None))
        self._positions.append(np.arange(max(start, FIRST), stop))
        return rows

    @property
    def kl(self) -> Floats:
        """Of each compared position."""
        return np.concatenate([rows.kl for rows in self._kl])

    @property
    def mean_kl(self) -> float:
        return float(self.kl.mean())

    @property
    def p99_kl(self) -> float:
        return float(np.quantile(self.kl, 0.99))

    @property
    def top1(self) -> float:
        return float(np.concatenate([rows.top == rows.reference_top for rows in self._kl]).mean())

    @property
    def top5(self) -> float:
        """Share of positions where the reference's most likely token is among the model's five most likely."""
        return float(np.concatenate([rows.among for rows in self._kl]).mean())

    @property
    def perplexity(self) -> float:
        return float(np.exp(np.concatenate([rows.loss for rows in self._rows]).mean()))

    @property
    def reference_perplexity(self) -> float:
        return float(np.exp(np.concatenate([rows.reference_loss for rows in self._rows]).mean()))

    def by_position(self) -> dict[int, float]:
        """The end of each range of positions → mean KL in it; the first range is 64…127, and each is twice as long."""
        positions, kl = np.concatenate(self._positions), self.kl
        found, start = {}, FIRST
        while (inside := (positions >= start) & (positions < 2 * start)).any():
            found[min(2 * start, int(positions.max()) + 1)] = float(kl[inside].mean())
            start *= 2
        return found


def compare(reference: Logits, found: Logits, targets: npt.NDArray[Any]) -> Rows:
    """Logits, [tokens, vocab] each; `targets` are the tokens that follow.

    Products are float32 and sums float64. KL = Σ p·(x - y) - ln Σ exp x + ln Σ exp y, with p of the reference.
    """
    starts = range(0, len(found), _ROWS)
    with threads.pool() as pool:
        parts = list(
            pool.map(lambda i: _compare(*(item[i : i + _ROWS] for item in (reference, found, targets))), starts)
        )
    return Rows(*(np.concatenate([getattr(part, name) for part in parts]) for name in Rows.__slots__))


def _compare(x: Logits, y: Logits, targets: npt.NDArray[Any]) -> Rows:
    rows = np.arange(len(x))
    top, reference_top = y.argmax(axis=1), x.argmax(axis=1)
    highest = x[rows, reference_top]
    weights = np.exp(x - highest[:, None])
    total = weights.sum(axis=1, dtype=np.float64)
    level = highest + np.log(total)
    peak = y[rows, top]
    own_level = peak + np.log(np.exp(y - peak[:, None]).sum(axis=1, dtype=np.float64))
    moved = (weights * (x - y)).sum(axis=1, dtype=np.float64) / total
    among = (y > y[rows, reference_top][:, None]).sum(axis=1) < _TOP
    return Rows(
        moved - level + own_level, top, reference_top, among, own_level - y[rows, targets], level - x[rows, targets]
    )


def _part(rows: Rows, start: int, stop: int | None) -> Rows:
    return Rows(*(getattr(rows, name)[start : None if stop is None else max(0, stop)] for name in Rows.__slots__))
