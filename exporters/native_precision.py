"""How precisely the native engine has to compute for a model to keep its recipe's limit, as the manifest says it.

The engine's default comes first. Where it costs too much, kinds of linears take 16-bit inputs one after another, then
keys and values are float32, then everything is; the first step within the limit is recorded, else the last.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import get_args

from edge.bundle import Bundle
from edge.errors import NumericsError, UnsupportedError
from edge.ops import Role
from edge.runtime import support
from exporters.parity import Parity

_ORDER: tuple[tuple[Role, ...], ...] = (("query", "key", "value"), ("gate", "up"), ("down",), ("output",))


def _steps() -> list[dict[str, str]]:
    steps: list[dict[str, str]] = [{}]
    for roles in _ORDER:
        steps.append({**steps[-1], **dict.fromkeys(roles, "int16")})
    steps.append({**steps[-1], "kv": "float32"})
    return [*steps, {**dict.fromkeys(get_args(Role), "float"), "kv": "float32"}]


STEPS = _steps()


def choose(draft: Bundle, reference: Parity | None, limit: float | None) -> Mapping[str, Mapping[str, str]]:
    """The manifest's `precision`: empty without a reference or an engine that takes the model, and for step 0.

    Without a limit, the first step whose logits are finite will do.
    """
    if reference is None or not support("native").devices:
        return {}
    for step in STEPS:
        found: dict[str, dict[str, str]] = {"native": step} if step else {}
        made = replace(draft, manifest=replace(draft.manifest, precision=found))
        try:
            if reference.used(made, "native").mean_kl <= (math.inf if limit is None else limit):
                break
        except NumericsError:  # keys or values beyond float16, which a later step keeps in float32
            continue
        except UnsupportedError:  # an op that the engine does not know: the report says so
            return {}
    return found
