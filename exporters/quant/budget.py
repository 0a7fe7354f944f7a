"""Bits by head: which heads and matrices take eight bits instead of four, under a limit for the whole payload.

What a part costs in four bits is measured elsewhere. In eight it costs a small share of that (an error is squared, and
a step is a sixteenth), so a part is worth its whole cost; the parts that are worth most a bit are widened first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from edge import payload
from edge.errors import OptionError
from edge.graph import Graph
from edge.ops import Role, Weight
from edge.payload import WIDE
from exporters.quant.recipe import Choice, Rule

_TOGETHER: tuple[tuple[Role, ...], ...] = (("query", "output"), ("key", "value"))


@dataclass(frozen=True, slots=True)
class Part:
    """What is widened together: a whole matrix, or one head of a query with its output, or of a key with its value.

    Heads that whole groups do not fit are not told apart: their columns of the output matrix would be padded.
    """

    weights: tuple[Weight, ...]
    head: int | None = None

    def shape(self, weight: Weight) -> tuple[int, int]:
        """Rows and columns of a weight that belong to the part."""
        rows, columns = weight.stored
        if self.head is None:
            return rows, columns
        return (rows, weight.head_dim) if weight.role == "output" else (weight.head_dim, columns)

    @property
    def extra_bytes(self) -> int:
        """What eight bits take more than four in groups of 32; groups of 64 or 128 save a little of that."""
        narrow = payload.Scheme(4, WIDE.group, "sym")
        return sum(WIDE.size(*shape) - narrow.size(*shape) for shape in map(self.shape, self.weights))


def parts(graph: Graph, choices: Mapping[str, Choice]) -> Iterator[Part]:
    """Everything that is in four bits now and can be widened, each matrix once."""
    free = [weight for weight in graph.weights if weight.is_matrix and _is_narrow(choices[weight.name])]
    layer: dict[Role, Weight] = {}
    for weight in free:
        fits = weight.head_dim and weight.head_dim % WIDE.group == 0
        whole = not fits or not any(weight.role in roles for roles in _TOGETHER)
        if whole:
            yield Part((weight,))
        else:
            layer[weight.role] = weight
        for roles in _TOGETHER:
            if not whole and weight.role == roles[1] and roles[0] in layer:
                together = (layer.pop(roles[0]), layer.pop(roles[1]))
                yield from (Part(together, head) for head in range(together[0].stored[0] // together[0].head_dim))


def _is_narrow(choice: Choice) -> bool:
    if len(choice.layout.runs) > 1 or "carry" in choice.methods:
        return False
    scheme = payload.parse_scheme(choice.layout.runs[0][1])
    return scheme is not None and scheme.bits < WIDE.bits


def bits(graph: Graph, choices: Mapping[str, Choice]) -> float:
    """Bits a weight over all matrices, scales included."""
    matrices = [weight for weight in graph.weights if weight.is_matrix]
    stored = sum(_bytes(weight, choices[weight.name]) for weight in matrices)
    return 8 * stored / sum(weight.size for weight in matrices)


def _bytes(weight: Weight, choice: Choice) -> int:
    total = 0
    for run in choice.layout.split(weight.name, weight.stored):
        scheme = payload.parse_scheme(run.scheme)
        rows, columns = run.shape
        total += (
            rows * columns * (2 if run.scheme == "float16" else 4) if scheme is None else scheme.size(rows, columns)
        )
    return total


def spend(
    graph: Graph, choices: Mapping[str, Choice], costs: Sequence[tuple[Part, float]], limit: float
) -> tuple[Part, ...]:
    """The parts to widen so that the payload has at most `limit` bits a weight, the most worthwhile first.

    Raises OptionError where it has more already.
    """
    count = sum(weight.size for weight in graph.weights if weight.is_matrix)
    now = bits(graph, choices)
    if now > limit:
        raise OptionError(
            f"the recipe alone takes {now:.3f} bits a weight, embedding and head included, and {limit:g} were asked "
            "for; raise --bits, or name a recipe with fewer, such as int4-g32-sym"
        )
    left = (limit - now) * count / 8
    chosen = []
    for part, cost in sorted(costs, key=lambda item: -item[1] / item[0].extra_bytes):
        if cost > 0 and part.extra_bytes <= left:
            left -= part.extra_bytes
            chosen.append(part)
    return tuple(chosen)


def rules(chosen: Sequence[Part], method: str) -> tuple[Rule, ...]:
    """Rules for the front of a recipe that widen the parts, one a matrix, in the order of the matrices' names."""
    heads: dict[str, set[int] | None] = {}
    for part in chosen:
        for weight in part.weights:
            known = heads.setdefault(weight.name, None if part.head is None else set())
            if known is not None and part.head is not None:
                known.add(part.head)
    return tuple(
        Rule((name,), WIDE.name, method=method, heads=None if found is None else tuple(sorted(found)))
        for name, found in sorted(heads.items())
    )
