"""A mixture of experts (arXiv:1701.06538): the router's choice, and the MLPs that it chooses among."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from edge.decoder import DecoderSpec
from edge.layers import Activation, Score
from edge.ops.op import OpKind, Weight


@dataclass(frozen=True, slots=True)
class Router:
    """logits [tokens, experts] → same: the weight of each chosen expert, 0 for the others.

    Scores are the softmax or the sigmoid of the logits; the experts are ranked by score + `bias` [experts] where there
    is one. Of `groups` equal runs of experts those `top_groups` compete that have the largest sums of their
    `group_best` best ranks. Then the `top_k` best are chosen, the lower index first among equals; each has its score
    (without the bias) as weight, divided by their sum if `normalize`, times `scale`.
    """

    kind: ClassVar[str] = "router"
    top_k: int
    score: Score
    normalize: bool
    scale: float
    groups: int = 1
    top_groups: int = 1
    group_best: int = 1
    bias: Weight | None = None


@dataclass(frozen=True, slots=True)
class Experts:
    """x [tokens, hidden], routing [tokens, experts] → [tokens, hidden]: Σ routing · down(activation(gate(x)) * up(x)).

    The sum is over the experts whose weight is not 0. `gate` and `up` are [experts, size, hidden], `down` is
    [experts, hidden, size].
    """

    kind: ClassVar[str] = "experts"
    gate: Weight
    up: Weight
    down: Weight
    activation: Activation


def _router_width(attrs: Router, inputs: Sequence[int], spec: DecoderSpec) -> int:
    experts = inputs[0]
    fits = attrs.bias is None or attrs.bias.shape == (experts,)
    divides = 0 < attrs.top_groups <= attrs.groups and experts % attrs.groups == 0
    if not (fits and divides and 0 < attrs.group_best <= experts // attrs.groups):
        return -1
    return experts if 0 < attrs.top_k <= experts // attrs.groups * attrs.top_groups else -1


def _experts_width(attrs: Experts, inputs: Sequence[int], spec: DecoderSpec) -> int:
    hidden, experts = inputs
    if len(attrs.gate.shape) != 3 or attrs.gate.shape != attrs.up.shape:
        return -1
    size = attrs.gate.shape[1]
    fits = attrs.gate.shape == (experts, size, hidden) and attrs.down.shape == (experts, hidden, size)
    return hidden if fits else -1


ROUTER = OpKind(1, _router_width)
EXPERTS = OpKind(2, _experts_width)
