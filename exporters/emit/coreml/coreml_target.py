"""The Core ML target: one package with functions for each context, for iOS 18 and macOS 15."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from typing import Any

from edge import artefacts, coreml_interface
from edge.bundle import Bundle, GraphInfo
from edge.contents import Artefact
from edge.coreml_interface import GOLDEN, LANES, MODEL, PACKAGE, RANGES, Function
from edge.errors import OptionError, UnsupportedError
from edge.graph import Graph
from edge.ops import Experts
from exporters.emit.coreml import golden, limits
from exporters.emit.coreml import toolkit as coremltools
from exporters.emit.coreml.experts import SHARE
from exporters.parity import TOKENS
from exporters.targets import Asked, Context, Emitted

TOOLS = ("coremltools",)
CONTEXTS = (512, 2048)
MINIMUM_OS = {"iOS": "18.0", "macOS": "15.0"}
_OS = re.compile(r"(iOS|macOS) ?([0-9]{1,3})(\.[0-9]{1,3})?")
_EXAMPLE = 24  # tokens of the golden prompt
_RUNTIMES = ("coreml", "coreml-interpreter")


def refuse(graph: Graph, asked: Asked) -> str:
    contexts(asked, graph)
    from exporters.emit.coreml.program import HANDLERS

    return coremltools.missing() or too_old(asked.minimum_os) or unknown(graph, HANDLERS) or _too_many_experts(graph)


def contexts(asked: Asked, graph: Graph) -> tuple[int, ...]:
    """The contexts that the functions are made for: those asked for, or the usual ones within the model's own.

    One holds the text of the parity check at least. Raises OptionError.
    """
    if asked.contexts is None:
        longest = -(-graph.spec.context // LANES) * LANES
        return tuple(sorted({min(context, longest) for context in CONTEXTS}))
    needed = min(TOKENS, graph.spec.context)
    for context in asked.contexts:
        if context < LANES or context % LANES:
            raise OptionError(f"a Core ML context of {context}; it must be a multiple of {LANES}")
    if max(asked.contexts, default=0) < needed:
        raise OptionError(
            f"a Core ML package needs a context of {needed} at least, for the check against the reference"
        )
    return tuple(sorted(set(asked.contexts)))


def too_old(minimum_os: str | None) -> str:
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


def unknown(graph: Graph, handlers: Collection[type[Any]]) -> str:
    """What a program has no translation of; "" where it knows all ops."""
    found = next((op for op in graph.ops if type(op.attrs) not in handlers), None)
    return "" if found is None else f"the Core ML emitter does not know op kind {found.kind!r} ({found.output})"


def _too_many_experts(graph: Graph) -> str:
    for mixture in (op for op in graph.ops if isinstance(op.attrs, Experts)):
        experts, chosen = mixture.attrs.gate.shape[0], graph.experts_chosen(mixture)
        if experts > SHARE * chosen:
            return (
                f"{mixture.output} chooses {chosen} of {experts} experts, and Core ML has no op for chosen matrices: "
                f"all would be computed for every token, which is done up to {SHARE} for each that is chosen"
            )
    return ""


def emit(context: Context) -> Emitted:
    """Write the package, and read it back.

    Raises UnsupportedError where a number on the text is too large for what must be float16, and BundleError where what
    was written is not what should have been.
    """
    draft, largest = context.draft, context.largest
    if largest is not None and (reason := limits.refuse(draft.graph, largest)):
        raise UnsupportedError(f"target coreml cannot be made of this model: {reason}")
    functions = coreml_interface.functions(contexts(context.asked, draft.graph))
    write_package(draft, functions, limits.wide(draft.graph, largest))
    line = artefacts.find("coreml").check(draft)
    files = [PACKAGE]
    if context.parity is not None:
        golden.write(draft.path / GOLDEN, artefacts.find("coreml").examples(draft, context.parity.ids[:_EXAMPLE]))
        files.append(GOLDEN)
    if largest is not None:
        text = json.dumps({name: float(f"{value:.6g}") for name, value in largest.items()}, indent=1) + "\n"
        (draft.path / RANGES).write_text(text, encoding="utf-8", newline="\n")
        files.append(RANGES)
    inputs, outputs = (
        tuple(dict.fromkeys(name for f in functions for name in coreml_interface.sides(draft.spec, f)[side]))
        for side in (0, 1)
    )
    graph = GraphInfo(MODEL, "coreml", {}, inputs, outputs)
    artefact = Artefact(tuple(files), _RUNTIMES)
    return Emitted(artefact, {"coreml": graph}, (limits.told(draft.graph, largest), line), MINIMUM_OS)


def write_package(draft: Bundle, functions: Sequence[Function], wide: Collection[str]) -> None:
    """Write the package of a bundle's payload; `wide` are the values that float16 cannot hold. Raises OSError."""
    from exporters.emit.coreml.package import PackageWriter
    from exporters.emit.coreml.program import Program

    PackageWriter(Program(coremltools.load(), draft, wide), draft.path / PACKAGE).write(functions)
