"""How precisely the native engine computes: by itself, and as a bundle's manifest asks for beyond that.

The manifest's `precision` has an entry "native": a role of weights → how linears with such weights take their input,
and "kv" → the dtype of keys and values, unless the caller names one. An export writes it where a model loses more than
its recipe allows.

    int8    codes of 8 bits; blocks of 32 in which one number stands out in 16
    int16   codes of 16 bits
    float   float32
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from edge.errors import BundleError
from edge.ops import Role

INPUTS = ("int8", "int16", "float")
KV = "kv"
# Two int8 parts cost little in the head, which runs once a step; a tied head's weight is the embedding.
DEFAULT: Mapping[str, str] = {"head": "int16", "embed": "int16"}


def read(asked: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """The entry for this engine over the default. Raises BundleError for a role or a precision that is none."""
    found = dict(asked.get("native", {}))
    for role, precision in found.items():
        known = ("float16", "float32") if role == KV else INPUTS if role in get_args(Role) else ()
        if precision not in known:
            raise BundleError(f"manifest: the native engine has no precision {precision!r} for {role!r}")
    return {**DEFAULT, **found}
