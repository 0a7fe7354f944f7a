"""What the native engine changes in a Graph before it makes a program of it."""

from __future__ import annotations

from dataclasses import replace

from edge.graph import Graph, Op, verify


def select_early(graph: Graph) -> Graph:
    """The same results, the wanted rows picked after the last attention: nothing behind it mixes rows.

    In a prefill that saves the last layer's other linears; every value behind the attention has the wanted rows alone.
    """
    last = max(index for index, op in enumerate(graph.ops) if op.kind == "attention")
    before, behind = graph.ops[: last + 1], graph.ops[last + 1 :]
    made = {op.output for op in behind}
    renamed = {op.output: op.inputs[0] for op in behind if op.kind == "select"}
    selects: dict[str, Op] = {}
    rest: list[Op] = []
    for op in behind:
        for name in op.inputs:
            if name not in made:
                selects.setdefault(name, Op("select", f"{name}/select", (name,)))
                renamed[name] = f"{name}/select"
        if op.kind != "select":
            rest.append(replace(op, inputs=tuple(renamed.get(name, name) for name in op.inputs)))
    widths = graph.widths | {op.output: graph.widths[name] for name, op in selects.items()}
    changed = Graph(graph.spec, (*before, *selects.values(), *rest), widths)
    verify(changed)
    return changed
