"""An interpreter of Core ML packages in numpy: it runs what was saved, and nothing that only the exporter knows.

As a backend it is slow, and shows on any machine what a package computes: `--runtime coreml-interpreter`. With `exact`
all numbers are float32, otherwise those are float16 that the package declares so, keys and values among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from edge.bundle import Bundle
from edge.coreml_interface import PACKAGE, Function
from edge.errors import UnsupportedError
from edge.kv import KvLayout
from edge.options import RuntimeOptions
from edge.runtime import Support, pick_device, pick_kv_dtype

if TYPE_CHECKING:
    from runtimes.coreml_package import PackageRuntime

NAME = "coreml-interpreter"


def support() -> Support:
    return Support(("cpu",))


def kept_kv(bundle: Bundle, options: RuntimeOptions) -> list[str]:
    offered = ("float32",) if options.exact else ("float16",)
    return [pick_kv_dtype(NAME, options, offered)] * len(bundle.spec.layers)


def open_model(bundle: Bundle, layout: KvLayout, options: RuntimeOptions) -> PackageRuntime:
    # Not at the top: the check of an artefact needs neither a ring nor a runtime.
    from runtimes.coreml_interpreter.artefact import contexts
    from runtimes.coreml_interpreter.evaluate import Interpreter
    from runtimes.coreml_interpreter.model import Package
    from runtimes.coreml_package import PackageRuntime, choose_context

    if "coreml" not in bundle.manifest.graphs:
        raise UnsupportedError(f"{bundle.path}: holds no Core ML package; export the model again with --targets coreml")
    device = pick_device(NAME, options, support().devices)
    dtype = np.dtype(kept_kv(bundle, options)[0])
    package = Package(bundle.path / PACKAGE)
    context = choose_context(bundle, layout, contexts(package))
    interpreter = Interpreter(package, half=not options.exact)

    def execute(function: Function, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        return interpreter.run(function.name, inputs)

    runtime = PackageRuntime(NAME, device, bundle, layout, dtype)
    runtime.bind(execute, context)
    return runtime
