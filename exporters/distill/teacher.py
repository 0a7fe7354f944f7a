"""What the float model says to the samples: its last hidden state of each token, and the head that reads it.

Most of a large vocabulary is never likely. So the distributions are compared on the tokens that the float model gives
any weight worth mentioning on these samples, as distributions among those: a fraction of the head's work and memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from edge.graph import TOKENS, Graph
from edge.ops import Linear, Op, Select, Weight
from exporters.distill.autograd import run
from exporters.distill.places import moved
from exporters.distill.state import Pass, Weights
from exporters.payload_writer import Plan

MASS = 0.999  # the float model's probability, over all samples, that the compared tokens have together
MOST = 32_768  # tokens that are compared at most
_ROWS = 64  # of logits of the whole vocabulary at a time


def body(graph: Graph) -> tuple[Op[object], ...]:
    """The ops up to the hidden states that the head reads."""
    last = next(index for index, op in enumerate(graph.ops) if isinstance(op.attrs, Select))
    return graph.ops[: last + 1]


def logits(graph: Graph, weights: Weights, hidden: Tensor, tokens: Tensor) -> Tensor:
    """The logits of some tokens of the vocabulary, [rows, tokens], of hidden states [rows, hidden]."""
    ops = graph.ops[len(body(graph)) :]
    head = next(op.attrs.weight for op in ops if isinstance(op.attrs, Linear))

    def chosen(weight: Weight) -> Tensor:
        return weights(weight)[tokens] if weight == head else weights(weight)

    return run(Pass(graph, chosen, 1, len(hidden)), ops, {ops[0].inputs[0]: hidden})


def hidden(graph: Graph, weights: Weights, samples: Tensor) -> Tensor:
    """The hidden states that the head reads, [samples * length, hidden], of ids [samples, length]."""
    count, length = samples.shape
    return run(Pass(graph, weights, count, length), body(graph), {TOKENS: samples.reshape(-1)})


@dataclass(frozen=True, slots=True)
class Teacher:
    """`hidden` [samples, length, width], the source's `head` [tokens, width] of the tokens that are compared."""

    graph: Graph
    hidden: Tensor
    tokens: Tensor
    head: Tensor

    def log_probabilities(self, index: Tensor) -> Tensor:
        """Of the compared tokens after each token of some samples, [samples * length, tokens]."""
        rows = self.hidden[index].flatten(0, 1)
        everything = torch.arange(len(self.tokens))
        return logits(self.graph, lambda weight: self.head, rows, everything).log_softmax(dim=1)


@torch.no_grad()
def ask(
    graph: Graph, plans: Mapping[str, Plan], samples: Tensor, progress: Callable[[float], None] = lambda share: None
) -> Teacher:
    """Run the source's weights over ids [samples, length]. They are all in memory meanwhile."""
    source = {weight.name: moved(plans[weight.name].source.read()).view(weight.shape) for weight in graph.weights}

    def weights(weight: Weight) -> Tensor:
        return source[weight.name]

    head = next(op.attrs.weight for op in graph.ops[len(body(graph)) :] if isinstance(op.attrs, Linear))
    states = torch.empty(*samples.shape, head.shape[1])
    mass = torch.zeros(head.shape[0], dtype=torch.float64)
    everything = torch.arange(head.shape[0])
    for index in range(len(samples)):
        states[index] = hidden(graph, weights, samples[index : index + 1])
        rows = states[index][:: _stride(len(samples))]
        for start in range(0, len(rows), _ROWS):
            mass += logits(graph, weights, rows[start : start + _ROWS], everything).softmax(dim=1).sum(dim=0)
        progress((index + 1) / len(samples))
    tokens = _likely(mass)
    return Teacher(graph, states, tokens, source[head.name][tokens])


def _stride(samples: int) -> int:
    """Of how many rows one is looked at to find the likely tokens: some thousand rows tell enough."""
    return max(1, samples // 8)


def _likely(mass: Tensor) -> Tensor:
    """The fewest tokens that hold MASS of the probability, at most MOST, in order."""
    order = mass.argsort(descending=True, stable=True)
    share = mass[order].cumsum(dim=0) / mass.sum()
    count = min(int((share < MASS).sum()) + 1, MOST)
    return order[:count].sort().values
