"""What a backend is: the Runtime protocol, and the one table of backends.

A backend executes the Graph of an opened bundle over its own KV storage. It knows tokens, slots and positions; it
does not know policies, prompts, text or sampling, and it keeps no bookkeeping of its own.
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
from edge.kv import KvLayout, RingPlan
from edge.options import RuntimeOptions

Want = Literal["none", "last", "all", "hidden", "attention_mass"]
_WANTS = get_args(Want)


@dataclass(frozen=True, slots=True)
class Segment:
    """New tokens of one sequence: `tokens` int32 [n], and a plan of n rows for each ring of the layout."""

    sequence: int
    tokens: npt.NDArray[np.int32]
    plans: tuple[RingPlan, ...]


class Runtime(Protocol):
    """An opened model. Not safe for concurrent calls; `Pipeline` serializes them."""

    spec: DecoderSpec
    layout: KvLayout
    name: str
    device: str

    def forward(self, segments: Sequence[Segment], want: Want = "last") -> list[npt.NDArray[np.float32]]:
        """Run the new tokens of each segment; an array a segment, by `want`:

        none             no logits, [0, vocab]: of a prompt that goes on; no head is run where the backend can do so
        last             logits of the last token, [vocab]
        all              logits of every token, [n, vocab]
        hidden           the final norm's output, [n, hidden]
        attention_mass   how much attention each held slot and new row got, [layers, filled + n]

        Raises UnsupportedError for a want that this backend lacks, NumericsError for logits that are not finite.
        The new rows are attended but not stored: see `store`.
        """
        ...

    def store(self, segment: Segment, count: int) -> None:
        """Write the first `count` new rows of the sequence's latest forward into their slots."""
        ...

    def copy_slots(self, source: int, target: int, filled: Sequence[int]) -> None:
        """Copy the first `filled[ring]` slots of each ring from one sequence to another."""
        ...

    def rotate_sinks(self, sequence: int, ring: int, shift: int) -> None:
        """Rotate the ring's sink keys to stand `shift` positions after where they were written."""
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
# `auto` never picks one in `EXPLICIT`.
RUNTIMES: dict[str, str] = {
    "native": "runtimes.native",
    "onnx": "runtimes.onnx_runtime",
    "scripted": "runtimes.scripted",
}
EXPLICIT = ("scripted",)


def support(name: str) -> Support:
    """Whether the backend of that name works here. Raises OptionError for an unknown name."""
    result: Support = _module(name).support()
    return result


def open_runtime(bundle: Bundle, layout: KvLayout, options: RuntimeOptions) -> Runtime:
    """Open a bundle on the backend that `options` name, or on the fastest that works here.

    Raises OptionError for an unknown name or a layout that memory cannot hold, and DeviceError when the backend, or
    its device, is not usable; the message says why.
    """
    name = automatic() if options.runtime == "auto" else options.runtime
    found = support(name)
    if not found.devices:
        raise DeviceError(f"runtime {name} is not usable here: {found.reason}")
    return _open(name, bundle, layout, options)


def automatic() -> str:
    """The backend that "auto" means here: the fastest that works. Raises DeviceError with each one's reason."""
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
    name = automatic() if options.runtime == "auto" else options.runtime
    dtypes: list[str] = _module(name).kept_kv(bundle, options)
    return name, dtypes


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


def check_want(want: str, supported: Sequence[Want], runtime: str) -> None:
    """Raise OptionError for a want that is none, UnsupportedError for one that the backend lacks."""
    if want not in _WANTS:
        raise OptionError(f"unknown want {want!r}; known are {', '.join(_WANTS)}")
    if want not in supported:
        raise UnsupportedError(f"runtime {runtime} cannot return {want!r}; it offers {', '.join(supported)}")


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
