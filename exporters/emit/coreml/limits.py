"""Which values of a graph float16 must not hold, by the largest magnitudes on a text.

A text shows a part of what a model does, so a value is kept in float16 up to half of what it holds. Scores have a lower
limit: what hides a slot is added to them, and must stay far below every score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edge.graph import LOGITS, Graph
from edge.ops import Attention, LatentAttention
from exporters.ranges import scores_of

LIMIT = 32_752.0  # half of 65,504, the largest float16
SCORES = 2_048.0


def wide(graph: Graph, largest: Mapping[str, float] | None) -> frozenset[str]:
    """The values that are computed in float32. Without magnitudes all scores are; latent attention's always."""
    found = {scores_of(op) for op in graph.ops if isinstance(op.attrs, LatentAttention)}
    for op in graph.ops:
        if isinstance(op.attrs, Attention) and (largest is None or not largest[scores_of(op)] <= SCORES):
            found.add(scores_of(op))
        if largest is not None and not largest[op.output] <= LIMIT:
            found.add(op.output)
    return frozenset(found)


def refuse(graph: Graph, largest: Mapping[str, float]) -> str:
    """Why the package cannot be made: a value that is float16 in any form of it is too large. "" where it can."""
    for op in graph.ops:
        kept: Sequence[str] = ()
        if isinstance(op.attrs, Attention):
            kept = op.inputs[1:]
        elif isinstance(op.attrs, LatentAttention):
            kept = op.inputs[2:]
        for name in (*kept, *((LOGITS,) if op.output == LOGITS else ())):
            if not largest.get(name, 0.0) <= LIMIT:
                return (
                    f"{name} reaches {largest[name]:.5g} on the text of the parity check, and is kept as float16, "
                    f"which is used up to {LIMIT:.5g}"
                )
    return ""


def told(graph: Graph, largest: Mapping[str, float] | None) -> str:
    """A line for the report."""
    if largest is None:
        return "coreml: no ranges were measured above a billion parameters; attention scores are float32"
    most = max(largest, key=lambda name: largest[name])
    text = f"coreml: the largest number on the text is {largest[most]:.5g}, in {most}"
    beyond = [name for name in largest if name in wide(graph, largest)]
    more = f" and {len(beyond) - 1} more" if len(beyond) > 1 else ""
    return f"{text}; float32 since float16 is too narrow: {beyond[0]}{more}" if beyond else text
