"""The ONNX target: decoder.onnx, as precise as the recipe's limit asks, and decoder-exact.onnx, for verification."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

from edge.bundle import GraphInfo
from edge.contents import Artefact
from edge.graph import Graph
from edge.ops import Attention
from edge.runtime import support
from exporters.targets import Asked, Context, Emitted

TOOLS = ("onnx", "onnxruntime")
DECODER, EXACT = "decoder.onnx", "decoder-exact.onnx"
_LANES = 8  # ONNX Runtime's attention takes heads of whole lanes


def refuse(graph: Graph, asked: Asked) -> str:
    if importlib.util.find_spec("onnx") is None:
        return "the package onnx is not installed: pip install onnx"
    from exporters.emit.onnx import HANDLERS

    unknown = next((op for op in graph.ops if type(op.attrs) not in HANDLERS), None)
    if unknown is not None:
        return f"the ONNX emitter does not know op kind {unknown.kind!r} ({unknown.output})"
    dims = {op.attrs.dim for op in graph.ops if isinstance(op.attrs, Attention)}
    odd = next((dim for dim in sorted(dims) if dim % _LANES), None)
    if odd is not None:
        return (
            f"ONNX Runtime's attention takes heads whose width is a multiple of {_LANES}, and they are {odd} wide here"
        )
    return ""


def emit(context: Context) -> Emitted:
    from exporters.emit import onnx

    draft = context.draft
    exact = onnx.emit(draft.graph, draft.weights, draft.path / EXACT, precision=lambda op: "float")
    decoder, notes = _emit_decoder(context)
    artefact = Artefact((DECODER, EXACT, draft.weights.path.name), ("onnx",))
    return Emitted(artefact, {"decoder": decoder, "exact": exact}, notes)


def _emit_decoder(context: Context) -> tuple[GraphInfo, tuple[str, ...]]:
    """Write decoder.onnx in the first precision whose mean KL against the reference is within the limit.

    Past the last step the graph is as precise as it gets, and the report says what that costs.
    """
    from exporters import precision
    from exporters.emit import onnx

    draft, parity, limit = context.draft, context.parity, context.activation_kl
    found = support("onnx")
    if not found.devices:
        info = onnx.emit(draft.graph, draft.weights, draft.path / DECODER, precision=precision.refined(0))
        return info, (f"{DECODER} was not run: {found.reason}",)
    for step in range(precision.STEPS):
        info = onnx.emit(draft.graph, draft.weights, draft.path / DECODER, precision=precision.refined(step))
        if parity is None or limit is None:
            break
        made = replace(draft, manifest=replace(draft.manifest, graphs={"decoder": info}))
        if parity.used(made, "onnx").mean_kl <= limit:
            break
    return info, ()
