"""What is done to a translated ONNX model, pass by pass, with a check of the whole after each.

Each pass trades nodes for fewer that ONNX Runtime has kernels for; results differ by rounding only.
"""

from __future__ import annotations

from dataclasses import replace

from exporters.emit.onnx_model import CONTRIB, Model, Node


def drop_identities(model: Model) -> None:
    """Let the users of an Identity read its input."""
    names: dict[str, str] = {}
    for node in model.nodes:
        if node.op == "Identity" and node.output not in model.outputs:
            names[node.output] = names.get(node.inputs[0], node.inputs[0])
    model.nodes = [
        replace(node, inputs=tuple(names.get(name, name) for name in node.inputs))
        for node in model.nodes
        if node.output not in names
    ]


def rope_in_attention(model: Model) -> None:
    """q, k, v split off one matrix, q and k rotated, then attention: give it the whole and let it rotate.

    The kernel rotates whole heads in units of 16; where q or k is normalized first, the pattern is not there.
    """
    makers = _makers(model)
    for index, node in enumerate(model.nodes):
        if node.op != "GroupQueryAttention":
            continue
        ropes = [makers.get(name) for name in node.inputs[:2]]
        if any(rope is None or rope.op != "RotaryEmbedding" for rope in ropes):
            continue
        q, k = (rope for rope in ropes if rope is not None)
        split = makers.get(q.inputs[0])
        whole = (q.inputs[0], k.inputs[0], node.inputs[2])
        half = model.inputs[q.inputs[2]][1][1]
        rotates_all = not q.attributes["rotary_embedding_dim"] and isinstance(half, int) and half % 8 == 0
        if split is None or split.op != "Split" or split.outputs != whole or not rotates_all:
            continue
        rows, cos, sin = q.inputs[1:]
        inputs = (split.inputs[0], "", "", *node.inputs[3:7], cos, sin, rows, node.inputs[10])
        model.nodes[index] = replace(node, inputs=inputs, attributes={**node.attributes, "do_rotary": 1})


def norm_with_residual(model: Model) -> None:
    """An Add and the norm of its sum become one node that yields both; the kernel takes no vector, as a bias is."""
    makers = _makers(model)
    constant = {*model.constants, *model.spans}
    fused: dict[str, Node] = {}  # output of the Add → the node that replaces it
    merged: set[str] = set()
    for node in model.nodes:
        total = makers.get(node.inputs[0]) if node.op == "RMSNormalization" else None
        if total is None or total.op != "Add" or total.output in fused or set(total.inputs) & constant:
            continue
        fused[total.output] = Node(
            "SkipSimplifiedLayerNormalization",
            (*total.inputs, node.inputs[1]),
            (node.output, "", "", total.output),
            CONTRIB,
            {"epsilon": node.attributes["epsilon"]},
        )
        merged.add(node.output)
    model.nodes = [fused.get(node.output, node) for node in model.nodes if node.output not in merged]


def _makers(model: Model) -> dict[str, Node]:
    return {output: node for node in model.nodes for output in node.outputs}


PASSES = (drop_identities, rope_in_attention, norm_with_residual)


def run(model: Model) -> None:
    model.verify()
    for step in PASSES:
        step(model)
        model.prune()
        model.verify()
