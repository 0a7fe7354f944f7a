"""The native CPU engine: runs a Graph from the bundle's payload in C++ (see src/), keys and values kept in its ring.

`DSEDGE_NATIVE_KERNELS` names the kernel set to use instead of the fastest: avx512bf16, avx512, avxvnni, avx2,
i8mm, neon, portable.
"""

from __future__ import annotations

import importlib.util
import os
from functools import cache

from edge.bundle import Bundle
from edge.errors import OptionError
from edge.kv import KvLayout
from edge.options import RuntimeOptions
from edge.runtime import Support, pick_device
from runtimes.kv_dtypes import kv_dtypes
from runtimes.native.engine import NativeRuntime, wanted_kv

VARIABLE = "DSEDGE_NATIVE_KERNELS"


def support() -> Support:
    """Usable where the extension was built; the reason then names the kernel set."""
    if importlib.util.find_spec("runtimes.native._native") is None:
        return Support((), f"dsedge was installed without its native engine; missing was {_missing()}")
    from runtimes.native import _native, schema

    if _native.schema() != schema.TEXT:
        return Support((), "its extension was built from other sources; install dsedge again")
    return Support(("cpu",), f"kernels: {kernels()}")


def _missing() -> str:
    """What the build lacked, as CMakeLists.txt noted it. Sources that nobody built have no note."""
    if importlib.util.find_spec("runtimes.native._not_built") is None:
        return "its build; install dsedge with pip"
    from runtimes.native._not_built import MISSING

    return MISSING


def kernels() -> str:
    """The kernel set that will be used. Raises OptionError where the environment names one that is not usable here."""
    return _kernels(os.environ.get(VARIABLE, ""))


@cache
def _kernels(wanted: str) -> str:
    from runtimes.native import _native

    found = _native.find_kernels(wanted)
    if not found:
        raise OptionError(f"{VARIABLE} is {wanted!r}, which is unknown or not usable here; leave it unset")
    return found


def kept_kv(bundle: Bundle, options: RuntimeOptions) -> list[str]:
    return kv_dtypes(bundle, wanted_kv(bundle, options))


def open_model(bundle: Bundle, layout: KvLayout, options: RuntimeOptions) -> NativeRuntime:
    pick_device("native", options, support().devices)
    return NativeRuntime(bundle, layout, options, kernels())
