"""What the native engine changes in a Graph, and in the steps that it becomes: the same logits from less work.

`PASSES` is the whole list. Each pass gives a program that computes the same bits with or without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from edge.graph import Graph, verify
from edge.ops import OPS, Op, Select
from runtimes.native.program import Instruction, Steps


def select_early(graph: Graph) -> Graph:
    """The wanted rows are picked after the last attention: nothing behind it mixes rows.

    In a prefill that saves the last layer's other linears; every value behind the attention has the wanted rows alone.
    """
    last = max(index for index, op in enumerate(graph.ops) if OPS[type(op.attrs)].attends)
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


def fuse_gates(steps: Steps) -> Steps:
    """A gate over two linears that read one value, and whose outputs it alone reads, becomes one step with them."""
    readers = steps.readers()
    makers = {name: step for step in steps.instructions for name in step.writes}
    fused: dict[int, Instruction] = {}  # by the identity of the gate
    gone: set[int] = set()
    for gate in (step for step in steps.instructions if step.kind == "gate"):
        pair = [makers[gate["gate"]], makers[gate["up"]]]
        alone = pair[0] is not pair[1] and all(readers[name] == [gate] for one in pair for name in one.writes)
        if alone and all(one.kind == "linear" and one["input"] == pair[0]["input"] for one in pair):
            gone.update(id(one) for one in pair)
            fused[id(gate)] = Instruction("gated_linear", {
                "input": pair[0]["input"], "output": gate["output"], "gate": pair[0]["matrix"], "crest": 0.0,
                "up": pair[1]["matrix"], "biases": pair[0]["biases"] + pair[1]["biases"],
                "activation": gate["activation"],
            })  # fmt: skip
    return _changed(steps, fused, gone)


def join_siblings(steps: Steps) -> Steps:
    """Linears that read the same value become one, where the first of them was."""
    groups: dict[str, list[Instruction]] = {}
    for step in steps.instructions:
        if step.kind == "linear":
            groups.setdefault(step["input"], []).append(step)
    kept: list[Instruction] = []
    for step in steps.instructions:
        group = groups[step["input"]] if step.kind == "linear" else [step]
        if step is not group[0]:
            continue
        if len(group) > 1:
            weights = tuple(runs for one in group for runs in one["matrix"].weights)
            outputs, biases = (tuple(x for one in group for x in one[name]) for name in ("outputs", "biases"))
            step = step.but(matrix=replace(step["matrix"], weights=weights), outputs=outputs, biases=biases)
        kept.append(step)
    return replace(steps, instructions=tuple(kept))


def fuse_residuals(steps: Steps) -> Steps:
    """An addition to a linear's only output that it alone reads becomes a part of that."""
    readers = steps.readers()
    written: set[str] = set()
    fused: dict[int, Instruction] = {}
    gone: set[int] = set()
    for step in steps.instructions:
        if step.kind == "linear" and len(step["outputs"]) == 1:
            (output,) = step["outputs"]
            add, *others = readers[output] or [step]
            other = add["left"] if add.kind == "add" and add["right"] == output else add.operands.get("right")
            if add.kind == "add" and not others and other != output and other in written and step["residual"] is None:
                gone.add(id(add))
                fused[id(step)] = step.but(residual=other, outputs=(add["output"],))
        written.update(step.writes)
    return _changed(steps, fused, gone)


def rotate_in_attention(steps: Steps) -> Steps:
    """The rotation of queries or keys that nothing else reads is left to what reads them."""
    readers = steps.readers()
    places = {"kv_write": "keys", "attention": "queries", "latent_attention": "queries"}
    fused: dict[int, Instruction] = {}
    gone: set[int] = set()
    for rope in (step for step in steps.instructions if step.kind == "rope"):
        reader, *others = readers[rope["output"]] or [rope]
        if reader.kind in places and not others and reader[places[reader.kind]] == rope["output"]:
            gone.add(id(rope))
            fused[id(reader)] = reader.but(rope=rope["rope"], **{places[reader.kind]: rope["input"]})
    return _changed(steps, fused, gone)


def quantize_where_made(steps: Steps) -> Steps:
    """A norm leaves its codes too; a gated linear whose output is read as codes alone leaves nothing else."""
    makers = {name: step for step in steps.instructions for name in step.writes}
    readers = steps.readers()
    fused: dict[int, Instruction] = {}
    gone: set[int] = set()
    for quantize in (step for step in steps.instructions if step.kind == "quantize"):
        source, codes = quantize["input"], quantize["output"]
        maker = makers[source]
        if maker.kind == "norm":
            fused[id(maker)] = maker.but(codes=codes, crest=quantize["crest"])
        elif maker.kind == "gated_linear" and readers[source] == [quantize]:
            fused[id(maker)] = maker.but(output=codes, crest=quantize["crest"])
        else:
            continue
        gone.add(id(quantize))
    return _changed(steps, fused, gone)


def _changed(steps: Steps, fused: dict[int, Instruction], gone: set[int]) -> Steps:
    """The steps without those that are gone, and with others in the place of some."""
    kept = tuple(fused.get(id(step), step) for step in steps.instructions if id(step) not in gone)
    return replace(steps, instructions=kept)


@dataclass(frozen=True, slots=True)
class Passes:
    """What is done to a Graph, then to the steps that it was translated to, in this order."""

    graph: tuple[Callable[[Graph], Graph], ...]
    steps: tuple[Callable[[Steps], Steps], ...]


PASSES = Passes(
    graph=(select_early,), steps=(fuse_gates, join_siblings, fuse_residuals, rotate_in_attention, quantize_where_made)
)
