"""The Core ML target for the Neural Engine: another package, with its own layout, weights and interface.

It is a second recipe for phones that run on the Neural Engine. Its functions are checked for their form when they are
written; what a device makes of them (whether all ops stay on the Neural Engine, and how fast) only a device can show.
"""

from __future__ import annotations

from edge import artefacts, coreml_ane_interface
from edge.bundle import GraphInfo
from edge.contents import Artefact
from edge.coreml_ane_interface import MODEL, PACKAGE
from edge.errors import UnsupportedError
from edge.graph import SELECTED, Graph
from edge.ops import Linear
from exporters.emit.coreml import coreml_target, limits
from exporters.emit.coreml import toolkit as coremltools
from exporters.targets import Asked, Context, Emitted

TOOLS = ("coremltools",)


def refuse(graph: Graph, asked: Asked) -> str:
    from exporters.emit.coreml.ane import HANDLERS

    coreml_target.contexts(asked, graph)
    return (
        coremltools.missing()
        or coreml_target.too_old(asked.minimum_os)
        or coreml_target.unknown(graph, HANDLERS)
        or _too_wide(graph)
    )


def _too_wide(graph: Graph) -> str:
    """Matrices of layers with more outputs than one product may have; the head is cut."""
    most = coreml_ane_interface.VOCABULARY
    for op in graph.ops:
        if isinstance(op.attrs, Linear) and graph.widths[op.output] > most and op.inputs != (SELECTED,):
            return f"{op.output} has {graph.widths[op.output]} channels, and the Neural Engine takes {most}"
    return ""


def emit(context: Context) -> Emitted:
    """Write the package and check its form. Raises UnsupportedError where a value is too large for float16."""
    from exporters.emit.coreml.ane import AneProgram
    from exporters.emit.coreml.package import PackageWriter

    draft, largest = context.draft, context.largest
    if largest is None:
        raise UnsupportedError(
            "target coreml-ane cannot be made of this model: above a billion parameters no ranges are measured"
        )
    beyond = sorted(limits.wide(draft.graph, largest), key=lambda name: -largest[name])
    if beyond:
        raise UnsupportedError(
            f"target coreml-ane cannot be made of this model: {beyond[0]} reaches {largest[beyond[0]]:.5g} on the text "
            "of the parity check, and everything is float16 there"
        )
    functions = coreml_ane_interface.functions(coreml_target.contexts(context.asked, draft.graph))
    PackageWriter(AneProgram(coremltools.load(), draft, ()), draft.path / PACKAGE).write(functions)
    line = artefacts.find("coreml-ane").check(draft)
    inputs, outputs = (
        tuple(dict.fromkeys(name for f in functions for name in coreml_ane_interface.sides(draft.spec, f)[side]))
        for side in (0, 1)
    )
    graph = GraphInfo(MODEL, "coreml", {}, inputs, outputs)
    return Emitted(Artefact((PACKAGE,), ()), {"coreml-ane": graph}, (line,), coreml_target.MINIMUM_OS)
