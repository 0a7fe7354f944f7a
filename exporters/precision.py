"""How precisely decoder.onnx takes its activations: as cheaply as a limit on what that costs in quality allows.

Int8 activations are the fastest everywhere. Where they cost too much, kinds of linears are refined one after another:
first the head, where two int8 parts are as good as float and nearly free, then the others in order of the quality that
a microsecond buys (measured on SmolLM2-135M, see docs/decisions.md), with float activations.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from edge.bundle import Bundle, GraphInfo
from edge.ops import Role, Weight
from exporters.emit import onnx
from exporters.emit.onnx_linear import Choose, Precision
from exporters.parity import Parity

_ORDER: tuple[tuple[Role, ...], ...] = (("query", "key", "value"), ("gate", "up"), ("down",), ("output",))
_STEPS = len(_ORDER) + 2  # nothing refined, then the head, then one kind after another


def emit_decoder(draft: Bundle, parity: Parity, limit: float | None) -> tuple[GraphInfo, dict[str, Any]]:
    """Write decoder.onnx in the first precision whose mean KL against the reference is within `limit`; and its figures.

    None is no limit. Past the last step the graph is as precise as it gets, and the figures say what that is.
    """
    for step in range(_STEPS):
        info = onnx.emit(draft.graph, draft.weights, draft.path / "decoder.onnx", precision=refined(step))
        found = parity.decoder(Bundle(draft.path, replace(draft.manifest, graphs={"decoder": info})))
        if limit is None or found.mean_kl <= limit:
            break
    counts = {kind: list(info.precision.values()).count(kind) for kind in ("int8", "int16", "float")}
    return info, {**asdict(found), "activations": counts}


def refined(step: int) -> Choose:
    """The precision of the linear of each weight after `step` refinements."""
    precise = {role for roles in _ORDER[: max(0, step - 1)] for role in roles}

    def choose(weight: Weight) -> Precision:
        if weight.role in ("head", "embed"):  # a tied head is the embedding
            return "int16" if step else "int8"
        return "float" if weight.role in precise else "int8"

    return choose
