"""What the full quality report measures: a bundle on texts next to another model, and what each part of it costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Copies:
    """Numbers and identifiers that a text repeats: how many, and the shares that each model predicts token by token."""

    spans: int
    other: float
    own: float


@dataclass(frozen=True, slots=True)
class Greedy:
    """Answers of at most `tokens` tokens to `prompts` beginnings of the text, always the most likely token.

    agreed   tokens before the first one that the other model would not have taken, the mean over prompts
    same     share of prompts whose whole answer is the other model's
    """

    prompts: int
    tokens: int
    agreed: float
    same: float


@dataclass(frozen=True, slots=True)
class Closeness:
    """A model next to another one. Perplexity is over all tokens, everything else from position 64 of each sample on.

    perplexity           of the other model
    mean_kl, p99_kl      KL(other ‖ model), nats a token
    top1, top5           share of positions where the other's most likely token is the model's, or among its first five
    kl_by_position       the end of a range of positions, as a text → mean KL in it; ranges double from 64 on
    """

    perplexity: float
    mean_kl: float
    p99_kl: float
    top1: float
    top5: float
    kl_by_position: Mapping[str, float]
    copies: Copies | None = None
    greedy: Greedy | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """A model on `tokens` tokens of a text, in samples of `length` that are sequences by themselves.

    `kv` is the option by which keys and values were kept, `kept` what that was: dtype → layers.
    """

    text: str
    kv: str
    kept: Mapping[str, int]
    length: int
    tokens: int
    perplexity: float
    against: Closeness | None = None


@dataclass(frozen=True, slots=True)
class TextSource:
    """Where a text is from; `license` is empty where it is not known."""

    source: str
    license: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of a bundle as `runtime` runs it.

    `other` says what it was set against: "source" (its source's weights in float32), a bundle's name, or nothing.
    `refused` says why something was not measured: "int8" (keys and values), or the name of a text.
    """

    runtime: str
    other: str
    texts: Mapping[str, TextSource]
    rows: tuple[Measurement, ...]
    refused: Mapping[str, str] = field(default_factory=dict)

    def short(self, kv: str = "auto") -> tuple[Measurement, ...]:
        """The rows of each text's short samples, with keys and values kept that way."""
        shortest = {row.text: min(item.length for item in self.rows if item.text == row.text) for row in self.rows}
        return tuple(row for row in self.rows if row.kv == kv and row.length == shortest[row.text])

    def overall(self) -> tuple[float, float] | None:
        """Mean KL and top-1 agreement, the means over the texts' short samples; None without another model."""
        found = [row.against for row in self.short() if row.against is not None]
        if not found:
            return None
        return sum(row.mean_kl for row in found) / len(found), sum(row.top1 for row in found) / len(found)

    def long(self, kv: str = "auto") -> tuple[Measurement, ...]:
        """The rows of longer samples."""
        short = self.short(kv)
        return tuple(row for row in self.rows if row.kv == kv and row not in short)


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """Mean KL, nats a token, where only a part of one layer has the bundle's weights and everything else the source's.

    attention, mlp   of a whole branch
    heads            of each query head: its rows of the query and its columns of the output matrix
    kv_heads         of each head of keys and values; both empty where heads were not looked at
    """

    attention: float
    mlp: float
    heads: tuple[float, ...] = ()
    kv_heads: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Costs:
    """What parts of the weights cost, each alone, on `tokens` tokens; `kinds` by the role of the matrices.

    `layers` is empty where the model is too large to look at them one by one.
    """

    tokens: int
    kinds: Mapping[str, float]
    layers: tuple[LayerCosts, ...] = ()
