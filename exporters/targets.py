"""The targets of an export: what is made of the graph and the payload for runtimes that want more than these two.

The payload itself is what the native engine runs, so every bundle has it and no target is needed for it.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from edge.bundle import Bundle, GraphInfo
from edge.contents import Artefact
from edge.errors import OptionError, UnsupportedError
from edge.graph import Graph
from exporters.parity import Parity


@dataclass(frozen=True, slots=True)
class Context:
    """What a target works with.

    draft          the bundle so far: its folder, its payload, and a manifest without graphs
    parity         the reference's logits, to choose a precision by; None for a model too large to compare
    activation_kl  what approximate activations may cost (mean KL, nats a token); None: anything
    """

    draft: Bundle
    parity: Parity | None
    activation_kl: float | None


@dataclass(frozen=True, slots=True)
class Emitted:
    """What a target wrote into the draft's folder: its artefact, entries of the manifest's `graphs`, and notes."""

    artefact: Artefact
    graphs: Mapping[str, GraphInfo]
    notes: tuple[str, ...] = ()


class Target(Protocol):
    """A module of the table."""

    def refuse(self, graph: Graph) -> str:
        """Why this target cannot be made here of a graph; "" where it can."""
        ...

    def emit(self, context: Context) -> Emitted: ...


TARGETS: dict[str, str] = {
    "onnx": "exporters.emit.onnx_target",
}
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


def choose(graph: Graph, wanted: Sequence[str] | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The targets to make, and notes on those that are left out. `wanted` None is every target that can be made.

    Raises OptionError for an unknown target, UnsupportedError for a wanted one that cannot be made.
    """
    chosen, notes = [], []
    for name in TARGETS if wanted is None else wanted:
        reason = find(name).refuse(graph)
        if reason and wanted is not None:
            raise UnsupportedError(f"target {name} cannot be made of this model: {reason}")
        if reason:
            notes.append(f"made without the target {name}: {reason}")
        else:
            chosen.append(name)
    return tuple(chosen), tuple(notes)
