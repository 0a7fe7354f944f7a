"""How long a context memory holds, and for how many conversations: what opening a model plans before it does it."""

from __future__ import annotations

import sys

from edge.bundle import Bundle
from edge.errors import OptionError
from edge.kv import plan_layout, policies, row_bytes
from edge.memory import available_memory, memory_limit
from edge.options import RuntimeOptions
from edge.runtime import CHUNK, kept_kv

DEFAULT_CONTEXT = 4096
DEFAULT_SEQUENCES = 4
_SHARE = 0.8  # of the memory that is free, for `auto`: the rest is for activations and everybody else
_STEP = 256


def context_of(bundle: Bundle, options: RuntimeOptions) -> int:
    """The context that options mean: a number, "auto" for the longest that free memory holds, or the default.

    Raises OptionError for one beyond what the model was trained for, and where memory does not hold the shortest.
    """
    most, policy = bundle.spec.context, policies.find(options.policy)
    if options.context == "auto" and policy.storage == "memory":
        return _longest(bundle, options)
    if options.context in (None, "auto"):
        return most if policy.storage == "file" else min(most, DEFAULT_CONTEXT)
    context = int(options.context)
    if context > most:
        raise OptionError(f"a context of {context} was asked for and the model was trained for {most}")
    return context


def _longest(bundle: Bundle, options: RuntimeOptions) -> int:
    most, free = bundle.spec.context, available_memory()
    if free is None:
        return most
    weights = bundle.weights.path.stat().st_size
    _, dtypes = kept_kv(bundle, options)
    budget = int(free * _SHARE) - weights

    def needed(context: int) -> int:
        return kv_bytes(bundle, context, options, dtypes) * (options.sequences or 1)

    if needed(most) <= budget:
        return most
    least = min(most, _STEP)
    if needed(least) > budget:
        raise OptionError(
            f"the weights of {bundle.manifest.name} take {weights / 1e6:.0f} MB, keys and values for a context of "
            f"{least} {needed(least) / 1e6:.0f} MB, and {free / 1e6:.0f} MB of memory are free; close other "
            "programs, or take a smaller model"
        )
    low, high = least // _STEP, most // _STEP  # in steps: what low needs fits, what high needs does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if needed(middle * _STEP) <= budget else (low, middle)
    return max(least, low * _STEP)


def kv_bytes(bundle: Bundle, context: int, options: RuntimeOptions, dtypes: list[str]) -> int:
    """Bytes of keys and values of one sequence whose context is full; `dtypes` of each layer."""
    layout = plan_layout(bundle.spec, context, chunk=options.chunk or CHUNK, policy=options.policy)
    return sum(
        layout.rings[group].slots * row_bytes(bundle.spec.kv_groups[group], dtype)
        for group, dtype in zip(bundle.spec.layer_groups, dtypes, strict=True)
    )


def sequences_of(bundle: Bundle, context: int, options: RuntimeOptions) -> int:
    """For how many contexts there is room; by default, within half of what a container leaves beside the weights.

    Windows counts memory when it is reserved, other systems when it is touched, and files take their room at once.
    """
    if options.sequences is not None:
        return options.sequences
    if sys.platform == "win32" or policies.find(options.policy).storage == "file":
        return 1  # shorter conversations share it
    limit = memory_limit()
    if limit is None:
        return DEFAULT_SEQUENCES
    most = kv_bytes(bundle, context, options, ["float32"] * len(bundle.spec.layers))
    left = limit - bundle.weights.path.stat().st_size
    return max(1, min(DEFAULT_SEQUENCES, left // 2 // most))


def check_memory(bundle: Bundle, kv: int, context: int) -> None:
    """Raise OptionError where a container's memory cannot hold the weights and `kv` bytes of keys and values.

    The system would end the process, at once or in the middle of a long conversation.
    """
    limit, weights = memory_limit(), bundle.weights.path.stat().st_size
    if limit is None or weights + kv <= limit:
        return
    needed, advice = f"take {weights / 1e6:.0f} MB", "raise its limit or take a smaller model"
    if weights <= limit:
        needed += f", keys and values for a context of {context} {kv / 1e6:.0f} MB,"
        advice = "choose a smaller context, or fewer sequences, or raise the limit"
    raise OptionError(
        f"the weights of {bundle.manifest.name} {needed} and this container may use {limit / 1e6:.0f} MB of memory; "
        f"{advice}"
    )
