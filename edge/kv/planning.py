"""From a model and a wish for room to the layout of its rings."""

from __future__ import annotations

from edge.decoder import DecoderSpec
from edge.errors import OptionError
from edge.kv import policies
from edge.kv.layout import KvLayout
from edge.kv.policies.policy import Room, bounded


def plan_layout(
    spec: DecoderSpec, context: int, *, chunk: int = 256, sinks: int = 0, sequences: int = 1, policy: str = "error"
) -> KvLayout:
    """Rings for a context: a layer of window W needs W slots and a chunk's worth of slack, others what the policy says.

    Raises OptionError for a room that the policy cannot do with: without a window beside the sinks, or with sinks that
    it does not keep.
    """
    rule = policies.find(policy)
    if not 1 <= context <= 2**31 or chunk < 1 or sequences < 1:
        raise OptionError(f"context {context}, chunk {chunk} and sequences {sequences} must be positive")
    if not 0 <= sinks < context:
        raise OptionError(f"{sinks} sinks do not fit a context of {context}")
    if sinks and not rule.sinks:
        keep = " or ".join(name for name, other in policies.POLICIES.items() if other.sinks)
        raise OptionError(f"sinks are kept by the policy {keep}, not by {policy}; choose it or leave out the sinks")
    chunk = min(chunk, context - sinks)
    room = Room(context, sinks, chunk, spec.context)
    promised = rule.context(room)
    rings = []
    for kv in spec.kv_groups:
        if kv.window is not None and kv.window < promised:
            rings.append(bounded(kv.window, chunk, most=promised if rule.ends else None))
        else:
            rings.append(rule.ring(room))
    return KvLayout(tuple(rings), promised, chunk, sequences, policy, rule.storage)
