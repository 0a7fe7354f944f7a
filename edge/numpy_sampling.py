"""The rule of edge/sampling.py in numpy, and the oracle of its other cores.

It sorts no more candidates than can matter for a draw, and sums over the whole vocabulary in float32 where the error
bound of that sum settles the draw.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.sampling import Logits, Mask, SamplingRule, ordered

Array = npt.NDArray[Any]
Words = tuple[int, int, int, int]

_MASK = 0xFFFFFFFF
_LOWEST = float(np.finfo(np.float32).min)
_AHEAD = 16  # random numbers that are made at once: one alone, between two steps of a model, costs several times more
# Candidates are looked for down to a weight, and further down only if those do not settle the draw. These weights are
# fractions of the sum of all, so that few candidates are as heavy; where the sum is not known, of the heaviest one.
_SHARES = (2.0**-12, 2.0**-18, 0.0)
_FRACTIONS = (2.0**-8, 2.0**-13, 2.0**-20, 2.0**-30, 0.0)
# An exponent down to -87 (below, float32 weights vanish) is rounded by at most 3 * 2**-24 of itself, the weight by a
# few units of 2**-24 more, and a pairwise sum adds as little: 2e-5 in all. Exact sums take over where that matters.
_ROUGH = 1e-4


def philox(counter: Words, key: tuple[int, int]) -> Words:
    """Philox4x32-10: four random 32-bit words for a 128-bit counter and a 64-bit key, lowest words first."""
    x0, x1, x2, x3 = counter
    k0, k1 = key
    for _ in range(10):
        even, odd = 0xD2511F53 * x0, 0xCD9E8D57 * x2
        x0, x1, x2, x3 = (odd >> 32) ^ x1 ^ k0, odd & _MASK, (even >> 32) ^ x3 ^ k1, even & _MASK
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return x0, x1, x2, x3


def uniform(seed: int, draw: int) -> float:
    """The number in [0, 1) of draw `draw` under a 64-bit seed: a multiple of 2**-53."""
    x0, x1, _, _ = philox((draw & _MASK, draw >> 32, 0, 0), (seed & _MASK, seed >> 32))
    return ((x0 << 32 | x1) >> 11) * 2.0**-53


def uniforms(seed: int, start: int = 0) -> Iterator[float]:
    """The numbers of draw `start`, `start` + 1, … under a seed."""
    for first in itertools.count(start, _AHEAD):
        yield from [uniform(seed, draw) for draw in range(first, first + _AHEAD)]


def usable() -> bool:
    return True


def make_core(rule: SamplingRule) -> NumpyCore:
    return NumpyCore(rule)


class NumpyCore:
    """One answer; see `edge.sampling.Core`."""

    def __init__(self, rule: SamplingRule) -> None:
        self.draws = 0
        self._rule = rule
        self._accepted: list[int] = []
        self._bias_ids = np.array([token for token, _ in rule.bias], np.int64)
        self._bias = np.array([bias for _, bias in rule.bias], np.float64)
        penalizes = rule.presence_penalty != 0.0 or rule.frequency_penalty != 0.0
        self._seen = _Distinct(rule.end) if rule.sampling.repetition_penalty != 1.0 else None
        self._answer = _Distinct(rule.end) if penalizes else None
        self._texts = [text for text in (self._seen, self._answer) if text is not None]
        self._adjusts = bool(self._texts or rule.bias or len(rule.holes))
        self._uniforms = uniforms(rule.seed)
        self._work = np.empty(rule.end if rule.sampling.temperature > 0 else 0, np.float32)

    def prompt(self, tokens: Sequence[int]) -> None:
        if self._seen is not None:
            for token in tokens:
                self._seen.add(token)

    def accept(self, token: int) -> None:
        self._accepted.append(token)
        for text in self._texts:
            text.add(token)

    def truncate(self, count: int) -> None:
        assert 0 <= count <= len(self._accepted), (count, len(self._accepted))
        for token in self._accepted[count:]:
            for text in self._texts:
                text.remove(token)
        del self._accepted[count:]
        if self.draws > count:
            self.draws = count
            self._uniforms = uniforms(self._rule.seed, count)

    def sample(self, logits: Logits, allowed: Mask | None) -> int:
        logits = self._adjust(logits[: self._rule.end], allowed)
        best = int(logits.argmax())  # argmax gives the first of equal values, and the first NaN where there is one
        top = float(logits[best])
        if not math.isfinite(top):
            return -1 - best
        if self._rule.sampling.temperature == 0:
            return best
        u = next(self._uniforms)
        self.draws += 1
        with np.errstate(over="ignore"):  # a tiny temperature sends weights to exp(-inf) = 0
            return self._draw(logits, top, u)

    def _adjust(self, logits: Logits, allowed: Mask | None) -> Logits:
        """Steps 1 to 3, on a copy; the logits themselves where nothing asks for any."""
        if not self._adjusts and allowed is None:
            return logits
        made, rule = logits.copy(), self._rule
        if self._seen is not None:
            ids, _ = self._seen.view()
            held = made[ids].astype(np.float64)
            penalty = rule.sampling.repetition_penalty
            made[ids] = np.where(held > 0, held / penalty, held * penalty)
        if self._answer is not None:
            ids, counts = self._answer.view()
            made[ids] = made[ids].astype(np.float64) - rule.presence_penalty - rule.frequency_penalty * counts
        made[rule.holes] = -np.inf
        if len(self._bias):
            made[self._bias_ids] = made[self._bias_ids].astype(np.float64) + self._bias
        if allowed is not None:
            made[~allowed[: rule.end]] = -np.inf
        return made

    def _draw(self, logits: Logits, top: float, u: float) -> int:
        """Steps 5 to 9. Sorts no more candidates than can matter for this u."""
        top_k, top_p, min_p = self._rule.sampling.top_k, self._rule.sampling.top_p, self._rule.sampling.min_p
        if top_k or (top_p == 1 and min_p):  # these need no sum over all weights
            fractions = _FRACTIONS if top_k else (min_p / 2, 0.0)
            ids, weights, sums = self._candidates(logits, top, math.inf, fractions)
            return int(ids[self._pick(weights, sums, float(sums[-1]), u)])
        # Almost always a float32 sum with its error bound decides as the exact one would, in a third of the time.
        about = self._rough_mass(logits, top)
        low, high = about * (1 - _ROUGH), about * (1 + _ROUGH)
        floors = [min(1.0, about * share) for share in _SHARES]
        ids, weights, sums = self._candidates(logits, top, (top_p if top_p < 1 else u) * high, floors)
        pick = self._pick(weights, sums, low, u)
        if pick != self._pick(weights, sums, high, u):
            pick = self._pick(weights, sums, float(self._weights(logits, top).sum()), u)
        return int(ids[pick])

    def _pick(self, weights: Array, sums: Array, total: float, u: float) -> int:
        """Steps 7 to 9 for candidates in order, with their running sums; `total` is the sum that step 6 left."""
        top_p, min_p = self._rule.sampling.top_p, self._rule.sampling.min_p
        count = len(sums)
        if top_p < 1:
            count = min(count, int(sums.searchsorted(top_p * total)) + 1)
        if min_p > 0:
            count = min(count, int((-weights).searchsorted(-min_p, side="right")))
        if top_p < 1 or min_p > 0:
            total = float(sums[count - 1])
        return min(int(sums.searchsorted(u * total, side="right")), count - 1)

    def _candidates(
        self, logits: Logits, top: float, goal: float, floors: Iterable[float]
    ) -> tuple[Array, Array, Array]:
        """(ids, weights, running sums) of the heaviest candidates, at most top_k, in the order of step 5.

        They go down to the first of the falling `floors`, the last of which is 0, that leaves them as many as top_k;
        or, without it, so many that their weights sum to more than `goal`, or all that are not under min_p.
        """
        top_k, temperature = self._rule.sampling.top_k, self._rule.sampling.temperature
        for floor in floors:
            lowest = max(_LOWEST, top + temperature * math.log(floor)) if floor else _LOWEST
            least = np.float32(lowest)
            ids = (logits >= least).nonzero()[0]
            if len(ids) < top_k and floor:
                continue
            ids = ordered(logits, ids)[: top_k or None]
            weights = self._weights(logits[ids], top)
            sums = weights.cumsum()
            if top_k or sums[-1] > goal or math.exp((float(least) - top) / temperature) < self._rule.sampling.min_p:
                break
        return ids, weights, sums

    def _weights(self, logits: Logits, top: float) -> Array:
        """float64 weights of step 5."""
        weights = logits.astype(np.float64)
        weights -= top
        weights /= self._rule.sampling.temperature
        return np.exp(weights, out=weights)

    def _rough_mass(self, logits: Logits, top: float) -> float:
        """The sum of all weights from float32 ones: within a factor of 1 ± `_ROUGH`."""
        np.subtract(logits, np.float32(top), out=self._work)
        # With a temperature below 1e-30, exp of any nonzero difference of two float32 logits is 0.
        np.multiply(self._work, np.float32(1 / max(self._rule.sampling.temperature, 1e-30)), out=self._work)
        np.exp(self._work, out=self._work)
        return float(self._work.sum())


class _Distinct:
    """The distinct tokens of a text and how often each came; adding or removing one costs the same at any length."""

    def __init__(self, vocab: int) -> None:
        self._place = np.full(vocab, -1, np.int32)
        self._ids = np.empty(256, np.int64)
        self._counts = np.empty(256, np.float64)
        self._size = 0

    def add(self, token: int) -> None:
        place = self._place[token]
        if place >= 0:
            self._counts[place] += 1
            return
        if self._size == len(self._ids):
            self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.empty_like(self._counts)])
        self._place[token] = self._size
        self._ids[self._size] = token
        self._counts[self._size] = 1
        self._size += 1

    def remove(self, token: int) -> None:
        """Take back one occurrence of a token that is there."""
        self._counts[self._place[token]] -= 1

    def view(self) -> tuple[Array, Array]:
        """(ids int64 [n], counts float64 [n]) of the tokens that are there."""
        ids, counts = self._ids[: self._size], self._counts[: self._size]
        if counts.all():
            return ids, counts
        return ids[counts > 0], counts[counts > 0]
