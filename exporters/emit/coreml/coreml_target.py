"""The Core ML target: one package with functions for each context, for iOS 18 and macOS 15."""

from __future__ import annotations

import json
import re

from edge import coreml_interface
from edge.bundle import GraphInfo
from edge.contents import Artefact
from edge.coreml_interface import LANES, MODEL, PACKAGE, RANGES
from edge.errors import OptionError, UnsupportedError
from edge.graph import Graph
from edge.ops import Experts, Router
from exporters.emit.coreml import limits
from exporters.emit.coreml import toolkit as coremltools
from exporters.emit.coreml.experts import SHARE
from exporters.targets import Asked, Context, Emitted

CONTEXTS = (512, 2048)
MINIMUM_OS = {"iOS": "18.0", "macOS": "15.0"}
_OS = re.compile(r"(iOS|macOS) ?([0-9]{1,3})(\.[0-9]{1,3})?")
_RUNTIMES = ("coreml-interpreter",)


def refuse(graph: Graph, asked: Asked) -> str:
    contexts(asked, graph)
    return coremltools.missing() or _too_old(asked.minimum_os) or _too_many_experts(graph)


def contexts(asked: Asked, graph: Graph) -> tuple[int, ...]:
    """The contexts that the functions are made for; those beyond the model's own are cut to it. Raises OptionError."""
    wanted = CONTEXTS if asked.contexts is None else asked.contexts
    for context in wanted:
        if context < LANES or context % LANES:
            raise OptionError(f"a Core ML context of {context}; it must be a multiple of {LANES}")
    if not wanted:
        raise OptionError("a Core ML package without a context; name one at least")
    longest = max(LANES, graph.spec.context // LANES * LANES)
    return tuple(sorted({min(context, longest) for context in wanted}))


def _too_old(minimum_os: str | None) -> str:
    """Why a package for that system cannot be made; "" where it can. Raises OptionError for what names none."""
    match = None if minimum_os is None else _OS.fullmatch(minimum_os)
    if minimum_os is None:
        return ""
    if match is None:
        raise OptionError(f"minimum_os is {minimum_os!r}; write such as iOS18 or macOS15")
    needed = MINIMUM_OS[match[1]]
    if int(match[2]) >= float(needed):
        return ""
    return (
        f"4-bit weights with a scale a group, and several functions in a package, need {match[1]} {needed}, and "
        f"{minimum_os} was asked for"
    )


def _too_many_experts(graph: Graph) -> str:
    routers = [op for op in graph.ops if isinstance(op.attrs, Router)]
    mixtures = [op for op in graph.ops if isinstance(op.attrs, Experts)]
    for router, mixture in zip(routers, mixtures, strict=True):
        experts, chosen = mixture.attrs.gate.shape[0], router.attrs.top_k
        if experts > SHARE * chosen:
            return (
                f"{mixture.output} chooses {chosen} of {experts} experts, and Core ML has no op for chosen matrices: "
                f"all would be computed for every token, which is done up to {SHARE} for each that is chosen"
            )
    return ""


def emit(context: Context) -> Emitted:
    """Write the package. Raises UnsupportedError where a number on the text is too large for a float16 that must be."""
    from exporters.emit.coreml.matrices import Matrices
    from exporters.emit.coreml.package import PackageWriter
    from exporters.emit.coreml.program import Program

    draft, largest = context.draft, context.largest
    if largest is not None and (reason := limits.refuse(draft.graph, largest)):
        raise UnsupportedError(f"target coreml cannot be made of this model: {reason}")
    tools, spec = coremltools.load(), draft.spec
    functions = coreml_interface.functions(contexts(context.asked, draft.graph))
    program = Program(tools, draft.graph, Matrices(draft.weights), limits.wide(draft.graph, largest))
    built = [(function, program.build(function)) for function in functions]
    PackageWriter(tools, draft.path / PACKAGE, program.blobs).write(built, spec)
    files = [PACKAGE]
    if largest is not None:
        text = json.dumps({name: float(f"{value:.6g}") for name, value in largest.items()}, indent=1) + "\n"
        (draft.path / RANGES).write_text(text, encoding="utf-8", newline="\n")
        files.append(RANGES)
    inputs, outputs = (
        tuple(dict.fromkeys(name for f in functions for name in coreml_interface.sides(spec, f)[side]))
        for side in (0, 1)
    )
    graph = GraphInfo(MODEL, "coreml", {}, inputs, outputs)
    artefact = Artefact(tuple(files), _RUNTIMES)
    return Emitted(artefact, {"coreml": graph}, (limits.told(draft.graph, largest),), MINIMUM_OS)
