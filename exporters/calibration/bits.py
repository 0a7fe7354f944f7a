"""Bits by head: each part of the model alone is rounded to its four bits, and the parts that cost most get eight.

What a part costs is measured on the output of the float model on a few tokens of the calibration text. A KL divergence
between two models needs no labels, so few tokens are enough to tell parts apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from edge import payload
from edge.errors import OptionError
from edge.graph import Graph
from exporters.payload_writer import Plan
from exporters.quant import budget, rtn
from exporters.quant.budget import Part
from exporters.quant.recipe import Recipe
from exporters.reference import Array
from exporters.report.costs import TOKENS_READ, Patch, Replay, one_head, whole

RECIPE = "int4-g32-sym"  # where none is named: few bits in every matrix, so that there is something to spend
LARGEST = 500_000_000  # parameters: a model is held in float32 while its parts are weighed
Progress = Callable[[float], None]


def check(graph: Graph, plans: Mapping[str, Plan], limit: float) -> None:
    """Raise OptionError for a limit that cannot be kept, and for a model that is too large to be weighed."""
    if not 4 < limit <= 32:
        raise OptionError(f"bits is {limit:g}; it is bits a weight over all matrices, scales included, such as 4.6")
    budget.spend(graph, {name: plan.choice for name, plan in plans.items()}, (), limit)
    if graph.parameters > LARGEST:
        raise OptionError(
            f"bits by head are chosen by weighing each part of the model, which has {graph.parameters:,} numbers; that "
            f"is done for up to {LARGEST:,}: name schemes by rules of a recipe instead"
        )


def widen(
    graph: Graph, plans: Mapping[str, Plan], recipe: Recipe, ids: Sequence[int], *, limit: float, progress: Progress
) -> Recipe:
    """The recipe with rules in front that give eight bits to the costliest parts, up to `limit` bits a weight in all.

    Raises OptionError as `check` does.
    """
    choices = {name: plan.choice for name, plan in plans.items()}
    parts = list(budget.parts(graph, choices))

    def source(name: str, start: int, stop: int | None) -> Array:
        return plans[name].source.read(start, stop)

    def made(name: str, start: int, stop: int | None) -> Array:
        read = source(name, start, stop)
        scheme = payload.parse_scheme(plans[name].choice.layout.runs[0][1])
        assert scheme is not None
        return payload.dequantize(scheme, rtn.encode(scheme, read), read.shape[1])

    replay = Replay(graph, source, made, ids[:TOKENS_READ])
    costs = replay.costs([_patch(part) for part in parts], lambda stage, share, transfer=None: progress(share))
    chosen = budget.spend(graph, choices, list(zip(parts, costs, strict=True)), limit)
    method = next((rule.method for rule in recipe.rules if rule.takes(chosen[0].weights[0].name)), "") if chosen else ""
    return replace(recipe, rules=(*budget.rules(chosen, method), *recipe.rules))


def _patch(part: Part) -> Patch:
    if part.head is None:
        return whole(part.weights)
    head: int = part.head
    return {weight.name: one_head(weight, head) for weight in part.weights}
