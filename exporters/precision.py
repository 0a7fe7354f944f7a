"""How precisely the linears of decoder.onnx take their activations: the steps from cheap to precise.

Int8 activations are the fastest everywhere. Where they cost too much, kinds of linears are refined one after another:
first the head, where two int8 parts are as good as float and nearly free, then the others in order of the quality that
a microsecond buys (measured on SmolLM2-135M, see docs/decisions.md), with float activations.
"""

from __future__ import annotations

from edge.ops import Role, Weight
from exporters.emit.onnx_linear import Choose, Precision

_ORDER: tuple[tuple[Role, ...], ...] = (("query", "key", "value"), ("gate", "up"), ("down",), ("output",))
STEPS = len(_ORDER) + 2  # nothing refined, then the head, then one kind after another


def refined(step: int) -> Choose:
    """The precision of the linear of each weight after `step` refinements."""
    precise = {role for roles in _ORDER[: max(0, step - 1)] for role in roles}

    def choose(weight: Weight) -> Precision:
        if weight.role in ("head", "embed"):  # a tied head is the embedding
            return "int16" if step else "int8"
        return "float" if weight.role in precise else "int8"

    return choose
