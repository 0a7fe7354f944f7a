"""What the native engine changes in a Graph before it makes a program of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from edge.graph import Graph, verify
from edge.ops import Attention, Op, Select


def select_early(graph: Graph) -> Graph:
    """The same results, the wanted rows picked after the last attention: nothing behind it mixes rows.

    In a prefill that saves the last layer's other linears; every value behind the attention has the wanted rows alone.
    """
    last = max(index for index, op in enumerate(graph.ops) if isinstance(op.attrs, Attention))
    before, behind = graph.ops[: last + 1], graph.ops[last + 1 :]
    made = {op.output for op in behind}
    renamed = {op.output: op.inputs[0] for op in behind if isinstance(op.attrs, Select)}
    selects: dict[str, Op[Select]] = {}
    rest: list[Op[Any]] = []
    for op in behind:
        for name in op.inputs:
            if name not in made:
                selects.setdefault(name, Op(f"{name}/select", (name,), Select()))
                renamed[name] = f"{name}/select"
        if not isinstance(op.attrs, Select):
            rest.append(replace(op, inputs=tuple(renamed.get(name, name) for name in op.inputs)))
    widths = graph.widths | {op.output: graph.widths[name] for name, op in selects.items()}
    changed = Graph(graph.spec, (*before, *selects.values(), *rest), widths)
    verify(changed)
    return changed
