"""The PyTorch backend (`pip install 'dsedge[torch]'`): a Graph on `cuda`, `mps` or `cpu`, from the bundle's payload.

Importing this imports no torch, and neither does asking whether it works here, unless there may be a GPU.

codes, products, kernels   what a matrix is stored in, and the ways to multiply with it
matrix, loading            the weights of a model, from the payload to the device
kv, step                   keys and values, and a forward as tensors
rows, attention, experts   the evaluators of ops; program: their table
fixed                      decoding in steps of equal shapes, which a CUDA graph replays
engine                     the Runtime; tuning: its chunk
"""

from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from edge import texts
from edge.bundle import Bundle
from edge.errors import DeviceError
from edge.kv import KvLayout
from edge.options import RuntimeOptions
from edge.runtime import CHUNK, Support, pick_device, pick_kv_dtype

if TYPE_CHECKING:
    from runtimes.torch.engine import TorchRuntime

MINIMUM = (2, 5)  # the first that packs int4 codes from bytes on every device
_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd", "C:/Windows/System32/nvcuda.dll")


def support() -> Support:
    """Its devices, the fastest first; the reason says why a GPU is not among them."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return Support((), "PyTorch is not installed: pip install 'dsedge[torch]'")
    found = _version(Path(spec.origin).parent)
    if found and found[:2] < MINIMUM:
        told, least = (".".join(map(str, item)) for item in (found, MINIMUM))
        return Support((), f"PyTorch {told} is too old: {least} or newer is needed: pip install -U torch")
    if reason := _why_no_gpu():
        return Support(("cpu",), reason)
    from runtimes.torch import devices

    names = devices.found()
    return Support(tuple(names), "" if len(names) > 1 else "no GPU: PyTorch, as it is installed, can use none here")


def _version(package: Path) -> tuple[int, ...]:
    """Of an installed PyTorch, from the file that says it: importing it takes seconds. Empty where there is none."""
    try:
        text = texts.read(package / "version.py")
    except (OSError, ValueError):
        return ()
    found = re.search(r"^__version__ = '(\d+)\.(\d+)\.(\d+)", text, re.MULTILINE)
    return tuple(int(part) for part in found.groups()) if found else ()


def _why_no_gpu() -> str:
    """Why torch need not be imported to look for a GPU; empty where it must be."""
    if sys.platform == "darwin":
        return ""
    return "" if any(Path(driver).exists() for driver in _DRIVERS) else "no GPU: no driver of one is installed"


def kept_kv(bundle: Bundle, options: RuntimeOptions) -> list[str]:
    """float32 on the CPU, which computes in it; else float16, and float32 for keys that this is too coarse for."""
    device = pick_device("torch", options, support().devices)
    exact = options.exact or options.compute == "float32"
    offered = ("float32",) if options.exact else ("float32", "float16") if exact or device == "cpu" else (
        "float16", "float32"
    )  # fmt: skip
    from runtimes.kv_dtypes import kv_dtypes  # not at the top: `auto` asks for a GPU at every start

    return kv_dtypes(bundle, pick_kv_dtype("torch", options, offered))


def open_model(bundle: Bundle, layout: KvLayout, options: RuntimeOptions) -> TorchRuntime:
    found = support()
    if not found.devices:
        raise DeviceError(f"runtime torch is not usable here: {found.reason}")
    device = pick_device("torch", options, found.devices)
    dtypes = kept_kv(bundle, options)
    from edge.saving import bundle_sum

    try:
        from runtimes.torch import tuning
        from runtimes.torch.engine import open_engine
    except (ImportError, OSError) as error:  # an installation that lacks a library of its own
        raise DeviceError(f"PyTorch cannot be imported: {error}; install it again") from error

    runtime = open_engine(bundle, layout, options, device, dtypes)
    if options.chunk is None and layout.chunk > CHUNK:
        chunk = tuning.chunk_of(runtime, bundle_sum(bundle), layout.context)
        runtime.layout = replace(layout, chunk=chunk)
    return runtime
