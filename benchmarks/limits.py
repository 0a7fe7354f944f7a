"""What the machine allows: the bytes that a token must read, the operations of a prompt, and how fast memory is read.

Decoding reads every weight once for a token (of the embedding one row, unless it is the head too) and the keys and
values that its query sees. Whatever else a step does can only add to the time that this takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from edge.decoder import DecoderSpec
from edge.errors import UnsupportedError
from edge.graph import Graph
from edge.ops import OPS, Attention, Embed, Experts, LatentAttention, Linear, Select

_READ = 1 << 30  # bytes, so that no cache holds a part worth counting
_PASSES = 4


def weights_read(graph: Graph, size: Callable[[str], int]) -> int:
    """Bytes of weights that decoding a token reads; `size` gives those of one, by name."""
    shares = _shares(graph)
    read = {
        weight.name: shares.get(op.output, 1.0)
        for op in graph.ops
        if not isinstance(op.attrs, Embed)
        for weight in op.weights
    }
    return round(sum(size(name) * share for name, share in read.items()))


def _shares(graph: Graph) -> dict[str, float]:
    """How much of its weights each mixture of experts reads for one token: those of the chosen experts."""
    mixtures = (op for op in graph.ops if isinstance(op.attrs, Experts))
    return {op.output: graph.experts_chosen(op) / graph.widths[op.inputs[1]] for op in mixtures}


def rows_seen(spec: DecoderSpec, held: float) -> float:
    """Rows of keys (and as many of values), over all layers, that a query sees when `held` tokens are in the cache."""
    return sum(min(held, layer.attention.window or held) for layer in spec.layers)


def operations(graph: Graph, prompt: int) -> tuple[int, int]:
    """Multiplications and additions of a prompt's prefill: those with weights, and those with keys and values.

    The head counts once, for the last token. A query at position p multiplies p + 1 keys, or a window's, and adds up
    as many values.
    """
    weights, attention, rows, shares = 0.0, 0, prompt, _shares(graph)
    for op in graph.ops:
        attrs = op.attrs
        if isinstance(attrs, Select):
            rows = 1
        elif isinstance(attrs, Linear):
            weights += 2 * rows * attrs.weight.size
        elif isinstance(attrs, Experts):
            weights += 2 * rows * shares[op.output] * sum(weight.size for weight in op.weights)
        elif isinstance(attrs, LatentAttention):
            # In the expanded form, the fewest for a prompt: keys and values of each token once, then each pair.
            weights += 2 * prompt * sum(weight.size for weight in op.weights)
            pair = attrs.nope_dim + attrs.rope_dim + attrs.value_dim
            attention += attrs.heads * pair * prompt * (prompt + 1)
        elif isinstance(attrs, Attention):
            full = min(attrs.window or prompt, prompt)
            attention += 4 * attrs.heads * attrs.dim * (full * (full + 1) // 2 + (prompt - full) * full)
        elif not isinstance(attrs, Embed) and (OPS[type(attrs)].attends or any(w.is_matrix for w in op.weights)):
            raise UnsupportedError(f"what {op.kind} ({op.output}) multiplies is not known")
    return round(weights), attention


class Reader:
    """A gigabyte of memory, in huge pages where numpy gets them from the system, and threads that read it."""

    def __init__(self) -> None:
        self._data = np.ones(_READ // 4, np.int32)

    def rate(self, threads: int) -> float:
        """Bytes read a second: the best of a few passes, each a maximum of integers over every thread's own part."""
        parts = np.array_split(self._data, threads)
        seconds = []
        with ThreadPoolExecutor(threads) as pool:
            for _ in range(_PASSES):
                start = time.perf_counter()
                list(pool.map(np.max, parts))
                seconds.append(time.perf_counter() - start)
        return self._data.nbytes / min(seconds)
