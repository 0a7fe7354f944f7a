"""The kinds of ops of a Graph: one small type of attributes each, and the table that says how they are checked.

All activations are [tokens, width]: `tokens` rows, one a new token. Readers dispatch on the type of `Op.attrs`; a kind
that a reader does not know is an UnsupportedError there. A new kind is a module here and an entry in `OPS`.
"""

from __future__ import annotations

from typing import Any

from edge.ops.attention import ATTENTION, ROPE, Attention, Rope
from edge.ops.experts import EXPERTS, ROUTER, Experts, Router
from edge.ops.latent import LATENT_ATTENTION, LatentAttention
from edge.ops.op import Op, OpKind, Role, Weight
from edge.ops.rows import (
    ADD,
    EMBED,
    GATE,
    LINEAR,
    NORM,
    SELECT,
    SOFTCAP,
    Add,
    Embed,
    Gate,
    Linear,
    Norm,
    Select,
    Softcap,
)

OPS: dict[type[Any], OpKind] = {
    Embed: EMBED,
    Norm: NORM,
    Linear: LINEAR,
    Rope: ROPE,
    Attention: ATTENTION,
    LatentAttention: LATENT_ATTENTION,
    Gate: GATE,
    Router: ROUTER,
    Experts: EXPERTS,
    Add: ADD,
    Select: SELECT,
    Softcap: SOFTCAP,
}

__all__ = [
    "OPS", "Add", "Attention", "Embed", "Experts", "Gate", "LatentAttention", "Linear", "Norm", "Op", "OpKind", "Role",
    "Rope", "Router", "Select", "Softcap", "Weight",
]  # fmt: skip
