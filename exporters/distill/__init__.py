"""Distillation: codes, scales and vectors learned end to end against the float model's distributions.

It begins with the payload of another method and ends in a payload of the same layout; nothing else changes. It trains
with torch, which nothing else here needs: only `distilling` and what it imports may import it.

autograd    the Graph with gradients: state, rows, attention, experts
learned     codes, scales and vectors that move: adam
student     the model that learns, made of a payload
teacher     what the float model says
training    the steps
states      what goes on after an interruption
budget      the memory that it takes
places      the device
distilling  all of it
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

from edge import payload
from edge.errors import UnsupportedError
from edge.payload import Scheme
from exporters.payload_writer import Plan

_MOST_BITS = 4  # codes of more are as good as their source


def learns(scheme: Scheme | None, method: str) -> bool:
    """Whether the codes of a run are learned: not those of the source itself, and not where nothing is to be gained."""
    return scheme is not None and scheme.bits <= _MOST_BITS and method != "carry"


def useful(plans: Mapping[str, Plan]) -> bool:
    """Whether there are codes to learn."""
    return any(
        learns(payload.parse_scheme(scheme), method)
        for plan in plans.values()
        for (_, scheme), method in zip(plan.choice.layout.runs, plan.choice.methods, strict=True)
    )


def check() -> None:
    """Raise UnsupportedError where torch is lacking."""
    if importlib.util.find_spec("torch") is None:
        raise UnsupportedError(
            "effort high trains with torch, which is not installed: pip install 'dsedge[torch]', or ask for effort "
            "medium, which needs numpy alone"
        )
