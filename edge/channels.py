"""How large each channel of queries and keys is, told by the weights that make it: no text is needed for that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.errors import UnsupportedError
from edge.graph import Graph
from edge.ops import Linear, Norm, Op, Rope

Float = npt.NDArray[np.float32]
Makers = Mapping[str, Op[Any]]


@dataclass(frozen=True, slots=True)
class Channels:
    """The standard deviation of each channel and its mean's magnitude, [heads, dim].

    For inputs that a norm leaves with a variance of 1 in each column.
    """

    sizes: Float
    means: Float


def makers(graph: Graph) -> Makers:
    """The op that makes each value."""
    return {op.output: op for op in graph.ops}


def chain(made: Makers, value: str) -> list[Op[Any]]:
    """The ops that make queries or keys, from the last one back to their linear: a rope, a norm, the linear.

    Raises UnsupportedError for a value that something else makes.
    """
    found = [made[value]]
    while not isinstance(found[-1].attrs, Linear):
        if not isinstance(found[-1].attrs, Norm | Rope):
            raise UnsupportedError(f"keys that a {found[-1].kind} makes have no known channels ({found[-1].output})")
        found.append(made[found[-1].inputs[0]])
    return found


def channels(read: Callable[[str], Float], made: Makers, value: str, heads: int, dim: int) -> Channels:
    """What a linear, its inputs' norm and a norm of its own make of each channel. That norm takes a bias away.

    `read` gives a weight's numbers by its name. Raises UnsupportedError as `chain` does.
    """
    ops = chain(made, value)
    norm = next((op.attrs for op in ops if isinstance(op.attrs, Norm)), None)
    factors = None if norm is None else np.abs(read(norm.weight.name) + np.float32(norm.offset))
    if factors is not None and len(factors) == dim:  # each head's own norm: its rows do not matter
        return Channels(np.tile(factors, (heads, 1)), np.zeros((heads, dim), np.float32))
    linear = ops[-1]
    before = made[linear.inputs[0]].attrs
    columns: Float | np.float32 = np.float32(1)
    if isinstance(before, Norm):
        columns = read(before.weight.name) + np.float32(before.offset)
    sizes: Float = np.linalg.norm(read(linear.attrs.weight.name) * columns, axis=1)
    bias = linear.attrs.bias
    means = np.abs(read(bias.name)) if bias and factors is None else np.zeros_like(sizes)
    if factors is not None:
        sizes = factors * sizes / np.sqrt(np.square(sizes).mean())
    return Channels(sizes.reshape(heads, dim), means.reshape(heads, dim))
