"""What a backend is: the Runtime protocol, and the one table of backends.

A backend executes the Graph of an opened bundle over pools of KV slots. It knows tokens, slots and positions; it
does not know policies, prompts, text or sampling, and which slot is whose is for `edge.kv` to say.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

from edge.bundle import Bundle
from edge.decoder import DecoderSpec
from edge.errors import DeviceError, NumericsError, OptionError, UnsupportedError
from edge.kv import KvLayout, Move, StepPlan, Storage, policies
from edge.options import RuntimeOptions

Float = npt.NDArray[np.float32]
Tap = Literal["hidden"]
_TAPS = get_args(Tap)


@dataclass(frozen=True, slots=True)
class Segment:
    """New tokens of one sequence in a batch.

    sequence    its extent in every ring; 0 where the backend has none
    tokens      int32 [n]
    plan        the position of the first, and for each ring of the layout the slots to write and the runs to attend
    logit_rows  of how many of them, the last ones, logits are wanted
    """

    sequence: int
    tokens: npt.NDArray[np.int32]
    plan: StepPlan
    logit_rows: int = 1


@dataclass(frozen=True, slots=True)
class Batch:
    """What one pass over the weights computes: segments of different sequences. `tap`, in place of logits:

    hidden    the final norm's output for each new token, [n, hidden]

    `on_device` leaves logits where they are, unchecked, for the core that `Capabilities.sampling` names; they are true
    until the next forward.
    """

    segments: tuple[Segment, ...]
    tap: Tap | None = None
    on_device: bool = False


@dataclass(frozen=True, slots=True)
class KvRows:
    """What a layer keeps of some tokens: keys [tokens, kv_heads, key_dim], after rope, and values [.., value_dim].

    float32; a layer that is kept in float16 may give and take that.
    """

    keys: Float | npt.NDArray[np.float16]
    values: Float | npt.NDArray[np.float16]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do.

    extents   it wants the rows of a sequence in one array: a sequence has `RingLayout.slots` slots of each ring to
              itself, from its number times that on, and sharing is a copy
    batching  segments of one batch share a pass over the weights; without, they run one after another
    taps      what else than logits it can return
    sampling  the core of `edge.sampling` that takes its logits where they are; None: they come to the host
    attention it can tell how much attention each row got (`RingPlan.attention`)
    storage   where it can keep keys and values
    """

    extents: bool
    batching: bool
    taps: tuple[Tap, ...] = ()
    sampling: str | None = None
    attention: bool = False
    storage: tuple[Storage, ...] = ("memory",)


class Runtime(Protocol):
    """An opened model. Not safe for concurrent calls; the engine serializes them."""

    spec: DecoderSpec
    layout: KvLayout
    name: str
    device: str
    capabilities: Capabilities
    kv_dtypes: tuple[str, ...]  # how each layer keeps keys and values
    notes: tuple[str, ...]  # what `--stats` says of how it computes

    def forward(self, batch: Batch) -> list[Float]:
        """Run the new tokens of each segment and keep them in their slots; its logits, [logit_rows, vocab], or a tap.

        Only slots to be written change, so that what was planned and not committed leaves no trace.
        Raises UnsupportedError for a tap that this backend lacks, NumericsError for logits that are not finite.
        """
        ...

    def move(self, move: Move) -> None:
        """Copy rows of a ring from slots to others, and rotate their keys on."""
        ...

    def read_rows(self, layer: int, slots: npt.NDArray[np.int64]) -> KvRows:
        """What a layer keeps in some slots."""
        ...

    def write_rows(self, layer: int, slots: npt.NDArray[np.int64], rows: KvRows) -> None:
        """Keep rows in slots. What was read from a layer of the same dtype is kept bit for bit."""
        ...

    @property
    def kv_bytes(self) -> int:
        """Bytes reserved for keys and values."""
        ...

    def close(self) -> None:
        """Free everything. Idempotent; any later call raises ClosedError."""
        ...


@dataclass(frozen=True, slots=True)
class Support:
    """Whether a backend works on this machine: its devices, or the reason why not."""

    devices: tuple[str, ...]
    reason: str = ""


# Fastest first. Each module offers `support() -> Support`, `open_model(bundle, layout, options) -> Runtime` and
# `kept_kv(bundle, options) -> list[str]`, the dtype of each layer's keys and values;
# `auto` never picks one in `EXPLICIT`. `SPECIAL` are options that only some backends have: name → those backends.
RUNTIMES: dict[str, str] = {
    "native": "runtimes.native",
    "onnx": "runtimes.onnx_runtime",
    "torch": "runtimes.torch",
    "coreml": "runtimes.coreml_runtime",
    "coreml-interpreter": "runtimes.coreml_interpreter",
    "scripted": "runtimes.scripted",
}
EXPLICIT = ("coreml", "coreml-interpreter", "scripted")
# What `dsedge doctor` says beside: modules with `describe(devices) -> list[str]`.
DETAILS = {"torch": "runtimes.torch.details"}
GPUS = ("torch",)  # backends that use a GPU where there is one
# The most prompt tokens in one forward: what most backends do best, and those that choose for themselves up to a bound.
CHUNK = 256
CHUNKS = {"torch": 1024}
SPECIAL: dict[str, tuple[str, ...]] = {"compute": ("torch",), "weights": ("torch",), "kv": ("torch",)}


def support(name: str) -> Support:
    """Whether the backend of that name works here. Raises OptionError for an unknown name."""
    result: Support = _module(name).support()
    return result


def details(name: str) -> list[str]:
    """What there is to say of a backend's devices here, beyond `support`; this may take seconds."""
    devices = support(name).devices
    if name not in DETAILS or not devices:
        return []
    try:
        found: list[str] = importlib.import_module(DETAILS[name]).describe(devices)
    except (ImportError, OSError) as error:
        return [f"it cannot be imported: {error}"]
    return found


def open_runtime(bundle: Bundle, layout: KvLayout, options: RuntimeOptions) -> Runtime:
    """Open a bundle on the backend that `options` name, or on the fastest that works here.

    Raises OptionError for an unknown name or a layout that memory cannot hold, UnsupportedError for a policy that the
    backend cannot follow, and DeviceError when the backend, or its device, is not usable; the message says why.
    """
    name = chosen(bundle, options)
    found = support(name)
    if not found.devices:
        raise DeviceError(f"runtime {name} is not usable here: {found.reason}")
    _check_special(name, options)
    runtime = _open(name, bundle, layout, options)
    try:
        _check_policy(runtime)
    except UnsupportedError:
        runtime.close()
        raise
    return runtime


def _check_policy(runtime: Runtime) -> None:
    """Raise UnsupportedError where the context policy needs what the backend lacks."""
    layout, offered = runtime.layout, runtime.capabilities
    if policies.find(layout.policy).attention and not offered.attention:
        raise UnsupportedError(
            f"the policy {layout.policy} goes by the attention that tokens get; runtime {runtime.name} cannot tell it"
        )
    if layout.storage not in offered.storage:
        raise UnsupportedError(
            f"the policy {layout.policy} keeps keys and values in a {layout.storage}; runtime {runtime.name} cannot"
        )


def _check_special(name: str, options: RuntimeOptions) -> None:
    """Raise UnsupportedError for an option that this backend does not have."""
    for option, backends in SPECIAL.items():
        wanted = getattr(options, option)
        if wanted != "auto" and name not in backends:
            raise UnsupportedError(f"runtime {name} has no option {option} ({wanted}); {', '.join(backends)} has it")


def chosen(bundle: Bundle, options: RuntimeOptions) -> str:
    """The backend that options mean for a bundle: the one that they name, or for "auto" the fastest here.

    By a device or an option that only some backends have, where they name one; where a GPU could be used, by a short
    measurement when that was first asked for. Raises DeviceError as `automatic` does.
    """
    if options.runtime != "auto":
        return options.runtime
    for option, backends in SPECIAL.items():
        if getattr(options, option) != "auto":
            return backends[0]
    if options.device != "auto":
        usable = (name for name in RUNTIMES if name not in EXPLICIT and options.device in support(name).devices)
        return next(usable, automatic())
    base = automatic()
    gpus = {name: found.devices[0] for name in GPUS if (found := support(name)).devices[:1] not in ((), ("cpu",))}
    if not gpus:
        return base
    from edge.choosing import fastest

    return fastest(bundle, options, {base: support(base).devices[0], **gpus})


def automatic() -> str:
    """The first backend of the table that works here. Raises DeviceError with each one's reason."""
    reasons = []
    for name in RUNTIMES:
        if name in EXPLICIT:
            continue
        found = support(name)
        if found.devices:
            return name
        reasons.append(f"{name}: {found.reason}")
    raise DeviceError(f"no runtime is usable here ({'; '.join(reasons)})")


def kept_kv(bundle: Bundle, options: RuntimeOptions) -> tuple[str, list[str]]:
    """The backend that `options` mean here, and the dtype in which it would keep the keys and values of each layer.

    Raises what `open_runtime` raises for a backend or a dtype that cannot be had.
    """
    name = chosen(bundle, options)
    dtypes: list[str] = _module(name).kept_kv(bundle, options)
    return name, dtypes


def widest_chunk(bundle: Bundle, options: RuntimeOptions) -> int:
    """The most prompt tokens that a forward of this bundle is planned for, where the options leave that open."""
    return options.chunk or CHUNKS.get(chosen(bundle, options), CHUNK)


def pick_device(name: str, options: RuntimeOptions, devices: Sequence[str]) -> str:
    """The device to use: the first usable one for "auto". Raises DeviceError naming what is there otherwise."""
    if options.device == "auto":
        return devices[0]
    if options.device not in devices:
        raise DeviceError(f"device {options.device!r} is not usable by runtime {name}; here are: {', '.join(devices)}")
    return options.device


def pick_kv_dtype(name: str, options: RuntimeOptions, offered: Sequence[str]) -> str:
    """How to keep keys and values: the first way for "auto". Raises UnsupportedError naming what there is otherwise."""
    if options.kv_dtype == "auto":
        return offered[0]
    if options.kv_dtype not in offered:
        raise UnsupportedError(f"runtime {name} offers kv_dtype {', '.join(offered)}, not {options.kv_dtype}")
    return options.kv_dtype


def check_tap(tap: str | None, runtime: Runtime) -> None:
    """Raise OptionError for a tap that is none, UnsupportedError for one that the backend lacks."""
    if tap is None or tap in runtime.capabilities.taps:
        return
    if tap not in _TAPS:
        raise OptionError(f"unknown tap {tap!r}; known are {', '.join(_TAPS)}")
    offered = ", ".join(runtime.capabilities.taps) or "logits alone"
    raise UnsupportedError(f"runtime {runtime.name} cannot return {tap!r}; it offers {offered}")


def check_finite(values: npt.NDArray[np.float32], runtime: str) -> None:
    """Raise NumericsError if a result holds NaN or an infinity: never sample from such logits."""
    # min and max return NaN where there is one, and need no temporary array.
    low, high = np.minimum.reduce(values, axis=None), np.maximum.reduce(values, axis=None)
    if not (math.isfinite(low) and math.isfinite(high)):
        raise NumericsError(f"runtime {runtime} computed logits that are not finite; the bundle or backend is at fault")


def _module(name: str) -> Any:
    if name not in RUNTIMES:
        raise OptionError(f"unknown runtime {name!r}; known are auto, {', '.join(RUNTIMES)}")
    return importlib.import_module(RUNTIMES[name])


def _open(name: str, bundle: Bundle, layout: KvLayout, options: RuntimeOptions) -> Runtime:
    try:
        runtime: Runtime = _module(name).open_model(bundle, layout, options)
    except MemoryError as error:
        raise OptionError(
            f"this machine has no memory for the model with a context of {layout.context}, {layout.sequences} "
            f"sequences and chunks of {layout.chunk}; choose less of them"
        ) from error
    return runtime
