"""What can be said of a target's artefact wherever the bundle lies: no device that runs it is needed.

One table of modules, imported lazily. They belong to the runtimes' side, which alone knows how an artefact is read; an
export calls them on what it has just written, `dsedge verify --target` on what it is given.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from edge.bundle import Bundle
from edge.errors import OptionError

# Rows start…stop of a weight as float32.
Reader = Callable[[str, int, int | None], npt.NDArray[np.float32]]


class ArtefactCheck(Protocol):
    """A module of the table. A draft of a bundle will do: its folder, its payload and its spec."""

    def check(self, bundle: Bundle) -> str:
        """Whether the artefact is whole and holds the payload's numbers: a line for a report. Raises BundleError."""
        ...

    def weights(self, bundle: Bundle) -> Reader:
        """The weights as the artefact holds them."""
        ...

    def examples(self, bundle: Bundle, tokens: Sequence[int]) -> Mapping[str, npt.NDArray[Any]]:
        """Inputs of the artefact's functions and what they make of them, for a replay on a device."""
        ...


CHECKS: dict[str, str] = {
    "coreml": "runtimes.coreml_interpreter.artefact",
    "coreml-ane": "runtimes.coreml_interpreter.ane_artefact",
}


def find(target: str) -> ArtefactCheck:
    """The check of a target's artefact. Raises OptionError for a target that has none."""
    if target not in CHECKS:
        raise OptionError(f"there is no check of the target {target!r} alone; there are: {', '.join(CHECKS)}")
    return cast(ArtefactCheck, importlib.import_module(CHECKS[target]))
