"""From logits to a token: penalties, truncation, and a draw that another language can repeat from the seed.

The rule, in this order, for the ids that have a token: rows that only fill up a matrix are no candidates. Logits and
every value stored back into them are float32; arithmetic on them is float64.

1. repetition   for each distinct token of the prompt and the answer: l := l / r if l > 0 else l * r
2. presence, frequency   for each distinct token of the answer, seen c times: l := l - presence - frequency * c
3. logit_bias   for each entry: l := l + bias. Then ids that a mask leaves out are no candidates
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
adding can move a draw only where u * W lies within rounding of a running sum. Tokens that are taken back, such as
those of a rejected draft, give their draws back: an answer's tokens do not depend on how it was computed.

`Sampler` is what callers use. The rule is computed by one of `CORES`: in C++ where that was built, and by numpy, with
which the C++ is compared. Their choices are equal.
"""

from __future__ import annotations

import importlib
import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, SupportsInt

import numpy as np
import numpy.typing as npt

from edge.errors import NumericsError, OptionError
from edge.options import GenerateOptions, Sampling

Logits = npt.NDArray[np.float32]
Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

# Fastest first. Each module offers `usable() -> bool` and `make_core(rule) -> Core`.
CORES: dict[str, str] = {
    "native": "runtimes.native.sampling",
    "numpy": "edge.numpy_sampling",
    "torch": "runtimes.torch.sampling",
}


@dataclass(frozen=True, slots=True)
class SamplingRule:
    """What applies to one answer. Logits from `end` on, and at `holes`, are of no token; `bias` is (id, bias) each."""

    sampling: Sampling
    seed: int
    end: int
    holes: npt.NDArray[np.int32]
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bias: tuple[tuple[int, float], ...] = ()


class Core(Protocol):
    """The state of one answer: which tokens it has, and how many random numbers it has drawn."""

    @property
    def draws(self) -> int: ...
    def prompt(self, tokens: Sequence[int]) -> None: ...
    def accept(self, token: int) -> None: ...
    def truncate(self, count: int) -> None: ...
    def sample(self, logits: Any, allowed: Mask | None) -> SupportsInt:
        """The token for logits [vocab]; -1 - id where the highest logit, that of `id`, is not finite, or NaN.

        A core that computes on a device returns before the number is there.
        """
        ...


@dataclass(frozen=True, slots=True)
class Logprob:
    """The natural logarithm of a token's probability, by the model alone: no penalty, bias or temperature.

    `top` are the likeliest tokens, best first, ties by ascending id: (id, logprob) each.
    """

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """Picks the tokens of one answer. `sampling` is what applies, `seed` the one in use, `core` names its core."""

    def __init__(
        self,
        options: GenerateOptions,
        vocab: int,
        *,
        model: Mapping[str, Any] | None = None,
        padded: Sequence[int] = (),
        core: str | None = None,
    ) -> None:
        """`vocab` is the length of the logits, `padded` are the ids that have no token and are never sampled.

        `model` has the values of `Sampling` that the options leave open. `core` names one of `CORES`, by default the
        fastest that is usable. Raises OptionError for a logit bias of an id that has no token.
        """
        self.rule = make_rule(options, vocab, model=model or {}, padded=padded)
        self.sampling, self.seed = self.rule.sampling, self.rule.seed
        self._top_logprobs = options.top_logprobs or 0
        self.core = core or fastest_core()
        self._core: Core = _module(self.core).make_core(self.rule)

    @property
    def draws(self) -> int:
        """How many random numbers the answer's tokens took."""
        return self._core.draws

    def prompt(self, tokens: Iterable[int]) -> None:
        """Tell the tokens of the prompt: the repetition penalty counts them."""
        if self.sampling.repetition_penalty != 1.0:
            self._core.prompt(list(tokens))

    def accept(self, token: int) -> None:
        """Tell a token that the answer now holds."""
        self._core.accept(token)

    def truncate(self, count: int) -> None:
        """Keep the answer's first `count` tokens and their draws."""
        self._core.truncate(count)

    def sample(self, logits: Logits, allowed: Mask | None = None) -> int:
        """The next token for float32 logits [vocab], which stay as they are; the caller then accepts it.

        `allowed`, bool [vocab], leaves out ids. Raises NumericsError for logits that are NaN or have no finite maximum.
        """
        return self.finish(self.start(logits, allowed), logits)

    def start(self, logits: Any, allowed: Mask | None = None) -> SupportsInt:
        """Begin to sample; `finish` waits for the token. Cores on a device take logits that are there."""
        return self._core.sample(logits, allowed)

    def finish(self, drawn: SupportsInt, logits: Any) -> int:
        """The token that `start` began to sample from these logits. Raises as `sample` does."""
        token = int(drawn)
        if token < 0:
            worst = -1 - token
            raise NumericsError(
                f"the logit of token {worst} is {float(logits[worst])}; the bundle or the runtime is at fault"
            )
        return token

    def logprob(self, logits: Logits, token: int) -> Logprob:
        """Of a token under logits, with as many of the likeliest as the options ask for."""
        rule = self.rule
        known = logits[: rule.end].copy()
        known[rule.holes] = -np.inf
        shifted = known.astype(np.float64) - float(known.max())
        total = math.log(float(np.exp(shifted).sum()))
        count = min(self._top_logprobs, rule.end - len(rule.holes))
        best: Array = np.empty(0, np.int64)
        if count:
            least = np.partition(known, -count)[-count]
            best = ordered(known, (known >= least).nonzero()[0])[:count]
        top = tuple((int(i), float(shifted[i]) - total) for i in best)
        return Logprob(token, float(shifted[token]) - total, top)


def make_rule(
    options: GenerateOptions, vocab: int, *, model: Mapping[str, Any], padded: Sequence[int] = ()
) -> SamplingRule:
    """What the options ask for, and the model where they leave it open. Raises OptionError as `Sampler` does."""
    known = np.ones(vocab, np.bool_)
    known[np.fromiter(padded, np.int64, len(padded))] = False
    for token, bias in options.logit_bias.items():
        if not 0 <= token < vocab or not known[token]:
            raise OptionError(
                f"logit bias {bias} for token {token}: the model's ids are 0 to {known.nonzero()[0].max(initial=0)}"
                f"{' without those that have no token' if len(padded) else ''}"
            )
    end = int(known.nonzero()[0].max(initial=0)) + 1
    return SamplingRule(
        sampling=options.sampling(model),
        # 53 bits: a fresh seed survives a JSON reader that keeps numbers as doubles.
        seed=secrets.randbits(53) if options.seed is None else int(options.seed),
        end=end,
        holes=(~known[:end]).nonzero()[0].astype(np.int32),
        presence_penalty=float(options.presence_penalty),
        frequency_penalty=float(options.frequency_penalty),
        bias=tuple((int(token), float(bias)) for token, bias in options.logit_bias.items()),
    )


def ordered(logits: Logits, ids: Array) -> Array:
    """`ids` (ascending) by descending logit, ties by ascending id.

    One sort of 64-bit keys: the id below the logit's bits, mapped so that a higher logit is a smaller number.
    """
    bits = (logits[ids] + np.float32(0)).view(np.int32)  # + 0: a negative zero equals a positive one
    rising = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    keys: npt.NDArray[np.int64] = ids - (rising.astype(np.int64) << 32)
    keys.sort()
    keys &= 0xFFFFFFFF
    return keys


@cache
def fastest_core() -> str:
    """The name of the first of `CORES` that is usable here."""
    return next(name for name in CORES if _module(name).usable())


def _module(name: str) -> Any:
    return importlib.import_module(CORES[name])
