"""What parts of a bundle's weights cost: each alone takes the bundle's numbers, and everything else is the source's.

The parts are the kinds of matrices, then the two branches of each layer, then each head, with the rows of the query and
the columns of the output matrix that belong to it, and each head of keys and values. A part's run begins where its
first weight is used, on values that one run of the source has left there. Large models get the first parts only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge.graph import LOGITS, TOKENS, Graph
from edge.measured import Costs, LayerCosts
from edge.ops import Select, Weight
from edge.progress import Progress
from exporters import threads
from exporters.calibration.walk import by_window
from exporters.distance import Logits, compare
from exporters.reference import EVALUATORS, Array, Reader
from exporters.reference.state import Step, WeightCache

TOKENS_READ, FIRST = 96, 16  # tokens of a text, and those at its beginning that are not counted
MEMORY = 500_000_000  # weights that are held as float32
WORK = 20_000_000_000_000  # multiplications
_ATTENTION = ("query", "key", "value", "output")
_LATENT = ("query_down", "query_nope", "query_rope", "key_rope", "latent", "key_up", "value_up")
Patch = dict[str, Callable[[Array, Array], Array]]  # weight → its numbers, of the source's and the bundle's


@dataclass(frozen=True, slots=True)
class _Layer:
    """The matrices of a layer's two branches, and its heads where they are grouped; 0 for none."""

    attention: tuple[Weight, ...]
    mlp: tuple[Weight, ...]
    heads: int
    kv_heads: int


def find(graph: Graph, source: Reader, made: Reader, ids: Sequence[int], progress: Progress) -> Costs | None:
    """The costs on a sample of ids, as many of them as the model's size allows; None above MEMORY weights."""
    if graph.parameters > MEMORY:
        return None
    layers = _layers(graph)
    kinds: list[str] = list(dict.fromkeys(weight.role for weight in graph.weights if weight.is_matrix))
    replay = Replay(graph, source, made, ids[:TOKENS_READ])
    tiers: list[list[Patch]] = [
        [whole(w for w in graph.weights if w.role == kind and w.is_matrix) for kind in kinds],
        [whole(branch) for layer in layers for branch in (layer.attention, layer.mlp)],
        [patch for layer in layers for patch in _heads(layer)],
    ]
    afforded, patches = 0, list[Patch]()
    for tier in tiers:
        if (len(patches) + len(tier)) * graph.parameters * TOKENS_READ > WORK:
            break
        patches += tier
        afforded += 1
    found = iter(replay.costs(patches, progress))
    by_kind = {kind: next(found) for kind in kinds} if afforded else {}
    branches = [(next(found), next(found)) for _ in layers] if afforded > 1 else []
    told = []
    for layer, (attention, mlp) in zip(layers, branches, strict=False):
        heads = tuple(next(found) for _ in range(layer.heads)) if afforded > 2 else ()
        kv_heads = tuple(next(found) for _ in range(layer.kv_heads)) if afforded > 2 else ()
        told.append(LayerCosts(attention, mlp, heads, kv_heads))
    return Costs(len(replay.ids) - FIRST, by_kind, tuple(told))


def _layers(graph: Graph) -> list[_Layer]:
    """A layer begins with the first attention matrix behind an MLP's."""
    found: list[tuple[list[Weight], list[Weight]]] = []
    for weight in graph.weights:
        if not weight.is_matrix or weight.role in ("embed", "head"):
            continue
        attention = weight.role in (*_ATTENTION, *_LATENT)
        if attention and (not found or found[-1][1]):
            found.append(([], []))
        found[-1][0 if attention else 1].append(weight)
    return [_Layer(tuple(attention), tuple(mlp), *_grouped(attention)) for attention, mlp in found]


def _grouped(attention: Sequence[Weight]) -> tuple[int, int]:
    """Heads of queries, and of keys and values; none where the attention is of another form."""
    by_role = {weight.role: weight for weight in attention}
    if set(by_role) != set(_ATTENTION):
        return 0, 0
    query, key = by_role["query"], by_role["key"]
    return query.shape[0] // query.head_dim, key.shape[0] // key.head_dim


def whole(weights: Iterator[Weight] | Sequence[Weight]) -> Patch:
    return {weight.name: lambda source, made: made for weight in weights}


def _heads(layer: _Layer) -> Iterator[Patch]:
    for count, roles in ((layer.heads, ("query", "output")), (layer.kv_heads, ("key", "value"))):
        weights = [weight for weight in layer.attention if weight.role in roles]
        for head in range(count):
            yield {weight.name: one_head(weight, head) for weight in weights}


def one_head(weight: Weight, head: int) -> Callable[[Array, Array], Array]:
    part = slice(head * weight.head_dim, (head + 1) * weight.head_dim)
    where = (slice(None), part) if weight.role == "output" else (part,)

    def patch(source: Array, made: Array) -> Array:
        mixed = source.copy()
        mixed[where] = made[where]
        return mixed

    return patch


class Replay:
    """The source's run over a sample, which can be taken up again before any op."""

    def __init__(self, graph: Graph, source: Reader, made: Reader, ids: Sequence[int]) -> None:
        self.graph, self.ids, self._made = graph, list(ids), made
        self._source = WeightCache(source, keep=True)
        self._weights = {weight.name: weight for weight in graph.weights}
        self._starts: dict[str, int] = {}
        self._last: dict[str, int] = {}
        for index, op in enumerate(graph.ops):
            self._last.update(dict.fromkeys(op.inputs, index))
            for weight in op.weights:
                self._starts.setdefault(weight.name, index)
        self._live: dict[int, dict[str, Any]] = {}  # values that are used from an op on, by the op's index
        self._expected = self._run(0, {TOKENS: np.asarray(self.ids, np.int64)}, self._source, keep=True)

    def costs(self, patches: Sequence[Patch], progress: Progress) -> Iterator[float]:
        """The mean KL of each patch, in nats a token."""
        with threads.pool() as pool:
            for number, cost in enumerate(pool.map(self._cost, patches), 1):
                progress("weigh heads", number / len(patches))
                yield cost

    def _cost(self, patch: Patch) -> float:
        patched: dict[str, Array] = {}
        for name, mix in patch.items():
            source, made = self._source.whole(self._weights[name]), self._made(name, 0, None)
            mixed = mix(source, made)
            if not np.array_equal(mixed, source):
                patched[name] = mixed
        if not patched:
            return 0.0

        def read(name: str, start: int, stop: int | None) -> Array:
            found = patched[name] if name in patched else self._source.whole(self._weights[name])
            return found[start:stop]

        start = min(self._starts[name] for name in patched)
        logits = self._run(start, self._live[start], WeightCache(read, keep=True))
        targets = np.zeros(len(self.ids), np.int64)
        return float(compare(self._expected, logits, targets).kl[FIRST:].mean())

    def _run(self, start: int, live: Mapping[str, Any], weights: WeightCache, *, keep: bool = False) -> Logits:
        values = dict(live)
        positions = np.arange(len(self.ids), dtype=np.int64)
        step = Step(self.graph.spec, weights, positions, {}, by_window(self.graph), len(self.ids))
        for index, op in enumerate(self.graph.ops[start:], start):
            if keep and op.weights:
                self._live[index] = dict(values)
            inputs = [values[name] for name in op.inputs]
            if isinstance(op.attrs, Select):  # every row counts here
                values[op.output] = inputs[0]
            else:
                values[op.output] = EVALUATORS[type(op.attrs)](step, op.attrs, inputs)
            for name in dict.fromkeys(op.inputs):
                if self._last[name] == index:
                    del values[name]
        logits: Logits = values[LOGITS]
        return logits
