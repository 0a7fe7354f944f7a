"""The float32 oracle: a plain numpy interpreter of the Graph, against which every artefact is measured.

It reads weights by canonical name through a callable, so the same code runs a checkpoint's source weights and a
bundle's dequantized ones. Above `KEEP_LIMIT` parameters nothing is kept between uses, and a block of rows at a time
is in memory. It has no ring: it keeps every key and value and takes visibility from a rule, which makes it the check
of the ring.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edge import rope
from edge.errors import UnsupportedError
from edge.graph import LOGITS, TOKENS, Graph
from edge.ops import Add, Attention, Embed, Gate, Linear, Norm, Op, Rope, Select, Softcap, Weight

Array = npt.NDArray[np.float32]
KEEP_LIMIT = 1_000_000_000
_ROWS = 1 << 24  # numbers of a matrix that are dequantized at a time when weights are not kept

# Rows start…stop of a weight as float32.
Reader = Callable[[str, int, int | None], Array]
# (KV group, query positions, key positions) → who sees whom, [queries, keys].
Visibility = Callable[[int, npt.NDArray[np.int64], npt.NDArray[np.int64]], npt.NDArray[np.bool_]]
# Called with the op and its float32 result.
Observer = Callable[[Op[Any], Array], None]


class Reference:
    """One sequence through the graph. `run` continues where the last call ended; `reset` starts anew.

    `context` is the number of tokens that the sequence is planned for: some ropes depend on it (see edge.rope).
    `keep` weights between uses: worth their memory when `run` is called more than once; by default up to KEEP_LIMIT.
    """

    def __init__(
        self, graph: Graph, read: Reader, *, visible: Visibility | None = None, context: int = 0,
        keep: bool | None = None,
    ) -> None:  # fmt: skip
        self.graph = graph
        self._context = context
        self._read = read
        self._visible = visible or self._by_window
        self._keep = graph.parameters <= KEEP_LIMIT if keep is None else keep
        self._kept: dict[str, Array] = {}
        self.reset()

    def reset(self) -> None:
        self._length = 0
        self._keys: dict[int, list[Array]] = {}
        self._values: dict[int, list[Array]] = {}

    def run(self, tokens: Sequence[int], *, last: bool = False, observe: Observer | None = None) -> Array:
        """Logits of the new tokens, [tokens, vocab], or of the last one alone, [1, vocab]."""
        ids = np.asarray(tokens, np.int64)
        positions = np.arange(self._length, self._length + len(ids), dtype=np.int64)
        uses = _last_uses(self.graph)
        values: dict[str, Any] = {TOKENS: ids}
        for index, op in enumerate(self.graph.ops):
            inputs = [values[name] for name in op.inputs]
            if isinstance(op.attrs, Select):
                result = inputs[0][-1:] if last else inputs[0]
            else:
                result = self._evaluate(op, inputs, positions)
            if observe:
                observe(op, result)
            values[op.output] = result
            for name in op.inputs:
                if uses[name] == index:
                    del values[name]
        self._length += len(ids)
        logits: Array = values[LOGITS]
        return logits

    def _evaluate(self, op: Op[Any], inputs: list[Any], positions: npt.NDArray[np.int64]) -> Array:
        x, attrs = inputs[0], op.attrs
        match attrs:
            case Embed():
                return self._embed(attrs, x)
            case Norm():
                return _norm(attrs, x, self._weight(attrs.weight))
            case Linear():
                return self._linear(attrs, x)
            case Rope():
                return _rope(
                    attrs, x, *rope.angles(self.graph.spec.ropes[attrs.rope], positions, context=self._context)
                )
            case Attention():
                return self._attention(attrs, inputs, positions)
            case Gate():
                return np.asarray(activate(attrs.activation, x) * inputs[1])
            case Add():
                return np.asarray(x + inputs[1])
            case Softcap():
                return np.asarray(np.float32(attrs.cap) * np.tanh(x / np.float32(attrs.cap)))
        raise UnsupportedError(f"the reference does not know op kind {op.kind!r} ({op.output})")

    def _weight(self, weight: Weight) -> Array:
        if weight.name not in self._kept:
            found = self._read(weight.name, 0, None)
            if not self._keep:
                return found
            self._kept[weight.name] = found
        return self._kept[weight.name]

    def _embed(self, op: Embed, ids: npt.NDArray[np.int64]) -> Array:
        rows: Array
        if self._keep:
            rows = self._weight(op.weight)[ids]
        else:
            rows = np.concatenate([self._read(op.weight.name, int(i), int(i) + 1) for i in ids])
        return rows * np.float32(op.scale)

    def _linear(self, op: Linear, x: Array) -> Array:
        if self._keep:
            out = x @ self._weight(op.weight).T
        else:
            rows, columns = op.weight.shape
            step = max(1, _ROWS // columns)
            blocks = [x @ self._read(op.weight.name, i, min(i + step, rows)).T for i in range(0, rows, step)]
            out = np.concatenate(blocks, axis=1)
        return out + self._weight(op.bias) if op.bias else out

    def _attention(self, op: Attention, inputs: list[Array], positions: npt.NDArray[np.int64]) -> Array:
        """Grouped-query attention over everything kept. q [n, heads * dim]; k, v [n, kv_heads * dim]."""
        q, k, v = (x.reshape(len(x), -1, op.dim) for x in inputs)
        keys, values = self._keys.setdefault(op.layer, []), self._values.setdefault(op.layer, [])
        keys.append(k)
        values.append(v)
        all_k, all_v = np.concatenate(keys), np.concatenate(values)
        seen = self._visible(op.group, positions, np.arange(len(all_k), dtype=np.int64))
        group = op.heads // op.kv_heads
        out = np.empty_like(q)
        for head in range(op.heads):
            scores = (q[:, head] @ all_k[:, head // group].T) * np.float32(op.scale)
            if op.softcap:
                scores = np.float32(op.softcap) * np.tanh(scores / np.float32(op.softcap))
            scores = np.where(seen, scores, -np.inf)
            scores = np.exp(scores - scores.max(axis=1, keepdims=True))
            out[:, head] = (scores / scores.sum(axis=1, keepdims=True)) @ all_v[:, head // group]
        return out.reshape(len(q), -1)

    def _by_window(self, group: int, query: npt.NDArray[np.int64], key: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        distance = query[:, None] - key
        window = self.graph.spec.kv_groups[group].window
        return (distance >= 0) & (distance < (window if window is not None else np.inf))


def activate(name: str, x: Array) -> Array:
    """silu: x·sigmoid(x). gelu_tanh: the tanh approximation of GELU (arXiv:1606.08415)."""
    if name == "silu":
        return np.asarray(x / (1 + np.exp(-np.clip(x, -80, None))))
    inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x**3)
    return np.asarray(np.float32(0.5) * x * (1 + np.tanh(inner)))


def _norm(op: Norm, x: Array, weight: Array) -> Array:
    """RMS norm (arXiv:1910.07467) over pieces of `dim`, the mean of squares in float64."""
    pieces = x.reshape(len(x), op.pieces, op.dim)
    mean = np.mean(np.square(pieces, dtype=np.float64), axis=-1, keepdims=True)
    scaled = pieces * (1 / np.sqrt(mean + op.eps)).astype(np.float32)
    return np.asarray(scaled * (weight + np.float32(op.offset))).reshape(x.shape)


def _rope(op: Rope, x: Array, cos: Array, sin: Array) -> Array:
    """Turn pair (i, i + rotary/2) of each head by its position's angle."""
    heads = x.reshape(len(x), op.heads, op.dim).copy()
    half = op.rotary // 2
    a, b = heads[..., :half].copy(), heads[..., half : op.rotary].copy()
    cos, sin = cos[:, None], sin[:, None]
    heads[..., :half] = a * cos - b * sin
    heads[..., half : op.rotary] = b * cos + a * sin
    return heads.reshape(x.shape)


def _last_uses(graph: Graph) -> dict[str, int]:
    return {name: index for index, op in enumerate(graph.ops) for name in op.inputs}
