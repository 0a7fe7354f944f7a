"""The targets of an export: what is made of the graph and the payload for runtimes that want more than these two.

The payload itself is what the native engine runs, so every bundle has it and no target is needed for it.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

from edge.bundle import Bundle, GraphInfo
from edge.contents import Artefact
from edge.errors import OptionError, UnsupportedError
from edge.graph import Graph
from exporters.parity import Parity


@dataclass(frozen=True, slots=True)
class Asked:
    """What a caller may ask of targets.

    contexts    context lengths of a package whose functions are fixed in it; None: the target's own choice
    minimum_os  the oldest system that it must run on, such as "iOS18"; None: whatever the target needs
    """

    contexts: tuple[int, ...] | None = None
    minimum_os: str | None = None


@dataclass(frozen=True, slots=True)
class Context:
    """What a target works with.

    draft          the bundle so far: its folder, its payload, and a manifest without graphs
    parity         the reference's logits, to choose a precision by; None for a model too large to compare
    activation_kl  what approximate activations may cost (mean KL, nats a token); None: anything
    largest        the largest magnitude of each value of the graph on the parity text; None for such a model
    """

    draft: Bundle
    parity: Parity | None
    activation_kl: float | None
    asked: Asked = Asked()
    largest: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Emitted:
    """What a target wrote into the draft's folder: its artefact, entries of the manifest's `graphs`, and notes.

    `minimum_os` is the oldest version of each system that the artefact runs on.
    """

    artefact: Artefact
    graphs: Mapping[str, GraphInfo]
    notes: tuple[str, ...] = ()
    minimum_os: Mapping[str, str] = field(default_factory=dict)


class Target(Protocol):
    """A module of the table.

    TOOLS  the packages that the artefact's bytes depend on, whose versions the manifest tells
    """

    TOOLS: tuple[str, ...]

    def refuse(self, graph: Graph, asked: Asked) -> str:
        """Why this target cannot be made here of a graph; "" where it can. Raises OptionError for what is asked."""
        ...

    def emit(self, context: Context) -> Emitted: ...


TARGETS: dict[str, str] = {
    "onnx": "exporters.emit.onnx_target",
    "coreml": "exporters.emit.coreml.coreml_target",
    "coreml-ane": "exporters.emit.coreml.ane_target",
}
EXPLICIT = (
    "coreml",
    "coreml-ane",
)  # made only where they are asked for: they take time, and a device that most exports are not for
NONE = "none"


def find(name: str) -> Target:
    """The target of that name. Raises OptionError for an unknown one."""
    if name not in TARGETS:
        raise OptionError(f"unknown target {name!r}; known are {', '.join([*TARGETS, NONE])}")
    return cast(Target, importlib.import_module(TARGETS[name]))


def parse(text: str) -> tuple[str, ...]:
    """Target names with commas between them, or `none`. Raises OptionError."""
    names = tuple(item.strip() for item in text.split(","))
    if names == (NONE,):
        return ()
    for name in names:
        find(name)
    return tuple(dict.fromkeys(names))


def choose(
    graph: Graph, wanted: Sequence[str] | None, asked: Asked = Asked()
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The targets to make, and notes on those that are left out.

    `wanted` None is every target that can be made, those in `EXPLICIT` left out. Raises OptionError for an unknown
    target, or for what is asked of none, and UnsupportedError for a wanted one that cannot be made.
    """
    if asked != Asked() and not set(EXPLICIT) & set(wanted or ()):
        raise OptionError(
            f"contexts and minimum_os are for the targets {', '.join(EXPLICIT)}; ask for one, or omit them"
        )
    chosen, notes = [], []
    for name in [name for name in TARGETS if name not in EXPLICIT] if wanted is None else wanted:
        reason = find(name).refuse(graph, asked)
        if reason and wanted is not None:
            raise UnsupportedError(f"target {name} cannot be made of this model: {reason}")
        if reason:
            notes.append(f"made without the target {name}: {reason}")
        else:
            chosen.append(name)
    return tuple(chosen), tuple(notes)
