"""How far a model's logits are from a reference's: KL divergence, agreement and perplexity over some texts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FIRST = 64  # positions of a sample before which nothing is compared: there is little context there
_ROWS = 64  # positions compared at a time, so that float64 copies stay small

Logits = npt.NDArray[np.float32]


class Distance:
    """What a model's logits on some samples say about it, next to a reference's."""

    def __init__(self) -> None:
        self._kl: list[npt.NDArray[np.float64]] = []
        self._same: list[npt.NDArray[np.bool_]] = []
        self._losses: list[float] = []

    def add(self, reference: Logits, found: Logits, ids: list[int]) -> None:
        """A sample's logits, [ids, vocab] each."""
        targets = np.asarray([*ids[1:], 0])
        losses = np.empty(len(ids))
        for start in range(0, len(ids), _ROWS):
            rows = slice(start, start + _ROWS)
            a, b = log_softmax(reference[rows]), log_softmax(found[rows])
            losses[rows] = -np.take_along_axis(b, targets[rows, None], axis=1)[:, 0]
            counted = slice(max(0, FIRST - start), None)
            self._kl.append((np.exp(a) * (a - b)).sum(axis=-1)[counted])
            self._same.append((a.argmax(-1) == b.argmax(-1))[counted])
        self._losses.append(float(losses[:-1].mean()))

    @property
    def mean_kl(self) -> float:
        return float(np.concatenate(self._kl).mean())

    @property
    def p99_kl(self) -> float:
        return float(np.quantile(np.concatenate(self._kl), 0.99))

    @property
    def top1(self) -> float:
        return float(np.concatenate(self._same).mean())

    @property
    def perplexity(self) -> float:
        return float(np.exp(np.mean(self._losses)))


def log_softmax(logits: Logits) -> npt.NDArray[np.float64]:
    """Over the last axis, in float64."""
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=-1, keepdims=True))
    return x
