"""What the evaluators of the reference share: the weights, and what has been kept of each token."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edge import rope
from edge.decoder import DecoderSpec
from edge.ops import Weight

Array = npt.NDArray[np.float32]
Positions = npt.NDArray[np.int64]
BLOCK = 1 << 24  # numbers of a matrix that are dequantized at a time when weights are not kept
_PRODUCTS = 1 << 25  # multiplications that a thread does at a time

# Rows start…stop of a weight as float32.
Reader = Callable[[str, int, int | None], Array]
# (layer, attention of each new token to every kept one, summed over heads, [new, kept]).
Told = Callable[[int, Array], None]
# (KV group, query positions, key positions) → who sees whom, [queries, keys].
Visibility = Callable[[int, Positions, Positions], npt.NDArray[np.bool_]]


class WeightCache:
    """Weights by rows, read through a callable; those that are wanted whole are kept if `keep`.

    With a `pool` a product is made in blocks of rows by its threads. The blocks depend on the shapes alone, so that its
    numbers do not depend on how many threads there are.
    """

    def __init__(self, read: Reader, *, keep: bool) -> None:
        self.keep = keep
        self.pool: Executor | None = None
        self._read = read
        self._kept: dict[str, Array] = {}

    def whole(self, weight: Weight) -> Array:
        if weight.name not in self._kept:
            found = self._read(weight.name, 0, None)
            if not self.keep:
                return found
            self._kept[weight.name] = found
        return self._kept[weight.name]

    def rows(self, weight: Weight, start: int, stop: int) -> Array:
        """Rows start…stop as they are stored: those of a stack's matrices follow one another."""
        return self.whole(weight)[start:stop] if self.keep else self._read(weight.name, start, stop)

    def member(self, weight: Weight, index: int) -> Array:
        """One matrix of a stack."""
        rows = weight.shape[1]
        return self.rows(weight, index * rows, (index + 1) * rows)

    def times(self, x: Array, weight: Weight) -> Array:
        """x · weightᵀ, some rows at a time where weights are not kept."""
        if self.keep:
            return self._product(x, self.whole(weight))
        rows, columns = weight.shape
        step = max(1, BLOCK // columns)
        products = [self._product(x, self.rows(weight, i, min(i + step, rows))) for i in range(0, rows, step)]
        return np.concatenate(products, axis=1)

    def _product(self, x: Array, matrix: Array) -> Array:
        if self.pool is None:
            return np.asarray(x @ matrix.T)
        out = np.empty((len(x), len(matrix)), np.float32)
        step = max(1, _PRODUCTS // max(1, x.size))

        def fill(start: int) -> None:
            out[:, start : start + step] = x @ matrix[start : start + step].T

        for _ in self.pool.map(fill, range(0, len(matrix), step)):
            pass
        return out


class Kept:
    """Rows that are kept of tokens, the latest last. Its memory doubles when it is full."""

    def __init__(self) -> None:
        self._rows = np.empty(0, np.float32)
        self._count = 0

    def add(self, new: Array) -> Array:
        """All rows, the new ones last; a view that is true until the next call."""
        count = self._count + len(new)
        if count > len(self._rows):
            grown = np.empty((max(count, 2 * len(self._rows)), *new.shape[1:]), np.float32)
            if self._count:
                grown[: self._count] = self._rows[: self._count]
            self._rows = grown
        self._rows[self._count : count] = new
        self._count = count
        return self._rows[:count]


@dataclass(frozen=True, slots=True)
class Step:
    """New tokens of one sequence at `positions`, and what the layers have `kept` of those before them, by name."""

    spec: DecoderSpec
    weights: WeightCache
    positions: Positions
    kept: dict[str, Kept]
    visible: Visibility
    context: int
    told: Told | None = None

    def angles(self, index: int) -> rope.Angles:
        return rope.angles(self.spec.ropes[index], self.positions, context=self.context)

    def keep(self, name: str, new: Array) -> Array:
        """All rows kept under a name so far, the new ones last."""
        return self.kept.setdefault(name, Kept()).add(new)
