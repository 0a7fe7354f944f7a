"""From logits to a token: penalties, truncation, and a draw that another language can repeat from the seed.

The rule, in this order, for the ids that have a token: rows that only fill up a matrix are no candidates. Logits and
every value stored back into them are float32; arithmetic on them is float64.

1. repetition   for each distinct token of the prompt and the answer: l := l / r if l > 0 else l * r
2. presence, frequency   for each distinct token of the answer, seen c times: l := l - presence - frequency * c
3. logit_bias   for each entry: l := l + bias
4. temperature 0 takes the highest logit, the lowest id on a tie, and draws nothing. Otherwise:
5. candidates are ordered by descending l, ties by ascending id; their weights are w = exp((l - l_max) / temperature)
6. top_k        the first k candidates stay
7. top_p        the shortest prefix stays whose weights sum to at least top_p times the sum of all that step 6 left
8. min_p        candidates with w >= min_p stay (l_max has w = 1)
9. draw         with W the sum of the weights that are left, the token is the first whose running sum of weights is
                over u * W; the last one left, should rounding leave none

Draw number d of an answer (0 for its first drawn token) uses u = ((x0 << 32 | x1) >> 11) * 2**-53, where x0, x1 are the
first two words of Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) for the
counter (d mod 2**32, d >> 32, 0, 0) and the key (seed mod 2**32, seed >> 32). Sums are float64; another order of
adding can move a draw only where u * W lies within rounding of a running sum.
"""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.errors import NumericsError, OptionError
from edge.options import GenerateOptions

Logits = npt.NDArray[np.float32]
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


def uniforms(seed: int) -> Iterator[float]:
    """The numbers of draw 0, 1, … under a seed."""
    for first in itertools.count(0, _AHEAD):
        yield from [uniform(seed, draw) for draw in range(first, first + _AHEAD)]


@dataclass(frozen=True, slots=True)
class Logprob:
    """The natural logarithm of a token's probability, by the model alone: no penalty, bias or temperature.

    `top` are the likeliest tokens, best first, ties by ascending id: (id, logprob) each.
    """

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """Picks the tokens of one answer.

    `sampling` is what applies, `seed` the one in use, `draws` how many random numbers it has given.
    """

    def __init__(
        self,
        options: GenerateOptions,
        vocab: int,
        *,
        model: Mapping[str, Any] | None = None,
        padded: Sequence[int] = (),
    ) -> None:
        """`vocab` is the length of the logits, `padded` are the ids that have no token and are never sampled.

        `model` has the values of `Sampling` that the options leave open. Raises OptionError for a logit bias of an id
        that has no token.
        """
        self.sampling = options.sampling(model or {})
        # 53 bits: a fresh seed survives a JSON reader that keeps numbers as doubles.
        self.seed = secrets.randbits(53) if options.seed is None else options.seed
        self.draws = 0
        self._options = options
        known = np.ones(vocab, np.bool_)
        known[np.fromiter(padded, np.int64, len(padded))] = False
        for token, bias in options.logit_bias.items():
            if not 0 <= token < vocab or not known[token]:
                raise OptionError(
                    f"logit bias {bias} for token {token}: the model's ids are 0 to {known.nonzero()[0].max(initial=0)}"
                    f"{' without those that have no token' if len(padded) else ''}"
                )
        vocab = self._end = int(known.nonzero()[0].max(initial=0)) + 1  # padded rows at the end are never read
        self._holes = (~known[:vocab]).nonzero()[0]
        self._bias_ids = np.fromiter(options.logit_bias.keys(), np.int64, len(options.logit_bias))
        self._bias = np.fromiter(options.logit_bias.values(), np.float64, len(options.logit_bias))
        self._repeats = self.sampling.repetition_penalty != 1.0
        self._counts_matter = options.presence_penalty != 0.0 or options.frequency_penalty != 0.0
        self._seen = _Distinct(vocab) if self._repeats else None
        self._answer = _Distinct(vocab) if self._counts_matter else None
        adjusts = self._repeats or self._counts_matter or bool(options.logit_bias) or len(self._holes) > 0
        self._logits = np.empty(vocab, np.float32) if adjusts else None
        self._uniforms = uniforms(self.seed)
        self._work = np.empty(vocab if self.sampling.temperature > 0 else 0, np.float32)

    def prompt(self, tokens: Iterable[int]) -> None:
        """Tell the tokens of the prompt: the repetition penalty counts them."""
        if self._seen is not None:
            for token in tokens:
                self._seen.add(token)

    def accept(self, token: int) -> None:
        """Tell a token that the answer now holds."""
        if self._seen is not None:
            self._seen.add(token)
        if self._answer is not None:
            self._answer.add(token)

    def sample(self, logits: Logits) -> int:
        """The next token for float32 logits [vocab], which stay as they are; the caller then accepts it.

        Raises NumericsError for logits that are NaN or have no finite maximum.
        """
        logits = self._adjust(logits[: self._end])
        best = int(logits.argmax())  # argmax gives the first of equal values, and the first NaN where there is one
        top = float(logits[best])
        if not math.isfinite(top):
            raise NumericsError(f"the logit of token {best} is {top}; the bundle or the runtime is at fault")
        if self.sampling.temperature == 0:
            return best
        u = next(self._uniforms)
        self.draws += 1
        with np.errstate(over="ignore"):  # a tiny temperature sends weights to exp(-inf) = 0
            return self._draw(logits, top, u)

    def logprob(self, logits: Logits, token: int) -> Logprob:
        """Of a token under logits, with as many of the likeliest as the options ask for."""
        known = logits[: self._end].copy()
        known[self._holes] = -np.inf
        shifted = known.astype(np.float64) - float(known.max())
        total = math.log(float(np.exp(shifted).sum()))
        count = min(self._options.top_logprobs or 0, self._end - len(self._holes))
        best: Array = np.empty(0, np.int64)
        if count:
            least = np.partition(known, -count)[-count]
            best = _ordered(known, (known >= least).nonzero()[0])[:count]
        top = tuple((int(i), float(shifted[i]) - total) for i in best)
        return Logprob(token, float(shifted[token]) - total, top)

    def _adjust(self, logits: Logits) -> Logits:
        """Steps 1 to 3, on a copy; the logits themselves where no option asks for any."""
        if self._logits is None:
            return logits
        np.copyto(self._logits, logits)
        if self._seen is not None:
            ids, _ = self._seen.view()
            held = self._logits[ids].astype(np.float64)
            penalty = self.sampling.repetition_penalty
            self._logits[ids] = np.where(held > 0, held / penalty, held * penalty)
        if self._answer is not None:
            ids, counts = self._answer.view()
            held = self._logits[ids].astype(np.float64)
            self._logits[ids] = held - self._options.presence_penalty - self._options.frequency_penalty * counts
        if len(self._holes):
            self._logits[self._holes] = -np.inf
        if len(self._bias):
            self._logits[self._bias_ids] = self._logits[self._bias_ids].astype(np.float64) + self._bias
        return self._logits

    def _draw(self, logits: Logits, top: float, u: float) -> int:
        """Steps 5 to 9. Sorts no more candidates than can matter for this u."""
        top_k, top_p, min_p = self.sampling.top_k, self.sampling.top_p, self.sampling.min_p
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
        top_p, min_p = self.sampling.top_p, self.sampling.min_p
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
        top_k, temperature = self.sampling.top_k, self.sampling.temperature
        for floor in floors:
            lowest = max(_LOWEST, top + temperature * math.log(floor)) if floor else _LOWEST
            least = np.float32(lowest)
            ids = (logits >= least).nonzero()[0]
            if len(ids) < top_k and floor:
                continue
            ids = _ordered(logits, ids)[: top_k or None]
            weights = self._weights(logits[ids], top)
            sums = weights.cumsum()
            if top_k or sums[-1] > goal or math.exp((float(least) - top) / temperature) < self.sampling.min_p:
                break
        return ids, weights, sums

    def _weights(self, logits: Logits, top: float) -> Array:
        """float64 weights of step 5."""
        weights = logits.astype(np.float64)
        weights -= top
        weights /= self.sampling.temperature
        return np.exp(weights, out=weights)

    def _rough_mass(self, logits: Logits, top: float) -> float:
        """The sum of all weights from float32 ones: within a factor of 1 ± `_ROUGH`."""
        np.subtract(logits, np.float32(top), out=self._work)
        # With a temperature below 1e-30, exp of any nonzero difference of two float32 logits is 0.
        np.multiply(self._work, np.float32(1 / max(self.sampling.temperature, 1e-30)), out=self._work)
        np.exp(self._work, out=self._work)
        return float(self._work.sum())


class _Distinct:
    """The distinct tokens of a growing text and how often each came; adding one costs the same at any length."""

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

    def view(self) -> tuple[Array, Array]:
        """(ids int64 [n], counts float64 [n])."""
        return self._ids[: self._size], self._counts[: self._size]


def _ordered(logits: Logits, ids: Array) -> Array:
    """`ids` (ascending) by descending logit, ties by ascending id.

    One sort of 64-bit keys: the id below the logit's bits, mapped so that a higher logit is a smaller number.
    """
    bits = (logits[ids] + np.float32(0)).view(np.int32)  # + 0: a negative zero equals a positive one
    rising = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    keys: npt.NDArray[np.int64] = ids - (rising.astype(np.int64) << 32)
    keys.sort()
    keys &= _MASK
    return keys
