"""The Core ML backend: runs a bundle's package on macOS through coremltools.

The package is compiled once and the result kept in the user's cache; each function is loaded when it is first called.
Devices say which compute units may be used: `cpu`, `gpu` and `ane` (the Neural Engine) beside the processor. Core ML
places ops as it likes, so the compute plan is read first: with `gpu` or `ane`, an op that would run on the processor is
an error which names it; with `gpu+cpu` or `ane+cpu` it may. coremltools hands out arrays of its own, which are copied
into the ring; an app keeps Core ML's output in its own buffers.

It has never run: there was no Mac to try it on. What it calls is coremltools' public interface.
"""

from __future__ import annotations

import importlib.util
import platform
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edge.bundle import Bundle
from edge.coreml_interface import BLOBS, MODEL, PACKAGE, Function, inputs
from edge.decoder import DecoderSpec
from edge.errors import BundleError, DeviceError, UnsupportedError
from edge.kv import KvLayout
from edge.options import RuntimeOptions
from edge.paths import cache_folder
from edge.runtime import Support, pick_device, pick_kv_dtype
from runtimes.coreml_interpreter.artefact import contexts
from runtimes.coreml_interpreter.model import Package
from runtimes.coreml_package import PackageRuntime, choose_context

NAME = "coreml"
_UNITS = {"cpu": "CPU_ONLY", "gpu": "CPU_AND_GPU", "ane": "CPU_AND_NE"}
_DEVICES = ("gpu+cpu", "gpu", "cpu", "ane+cpu", "ane")
_STRICT = ("gpu", "ane")
_MACOS = 15
_SHOWN = 3  # kinds of ops on the processor that an error names


def support() -> Support:
    if sys.platform != "darwin":
        return Support((), f"Core ML runs on macOS {_MACOS} and newer; --runtime coreml-interpreter runs anywhere")
    if int(platform.mac_ver()[0].partition(".")[0] or 0) < _MACOS:
        return Support((), f"macOS {platform.mac_ver()[0]} is older than {_MACOS}, which the packages need")
    if importlib.util.find_spec("coremltools") is None:
        return Support((), "the package coremltools is not installed: pip install dsedge[coreml]")
    return Support(_DEVICES)


def kept_kv(bundle: Bundle, options: RuntimeOptions) -> list[str]:
    return [pick_kv_dtype(NAME, options, ("float16",))] * len(bundle.spec.layers)


def open_model(bundle: Bundle, layout: KvLayout, options: RuntimeOptions) -> PackageRuntime:
    if "coreml" not in bundle.manifest.graphs:
        raise UnsupportedError(f"{bundle.path}: holds no Core ML package; export the model again with --targets coreml")
    if options.exact:
        raise UnsupportedError("Core ML computes in float16; --runtime coreml-interpreter computes a package exactly")
    device = pick_device(NAME, options, support().devices)
    dtype = np.dtype(kept_kv(bundle, options)[0])
    context = choose_context(bundle, layout, contexts(Package(bundle.path / PACKAGE)))
    models = Models(bundle, device)
    runtime = PackageRuntime(NAME, device, bundle, layout, dtype)
    runtime.bind(models.execute, context)
    return runtime


class Models:
    """The functions of a package as Core ML has loaded them. Raises BundleError for a package that it refuses."""

    def __init__(self, bundle: Bundle, device: str) -> None:
        self._spec: DecoderSpec = bundle.spec
        self._device = device
        self._path = _compiled(bundle)
        self._loaded: dict[str, Any] = {}

    def execute(self, function: Function, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Outputs by name."""
        if function.name not in self._loaded:
            self._loaded[function.name] = self._load(function)
        wanted = inputs(self._spec, function)
        arrays = {name: np.ascontiguousarray(array, wanted[name].dtype) for name, array in given.items()}
        made = self._loaded[function.name].predict(arrays)
        return {name: np.asarray(array) for name, array in made.items()}

    def placement(self, function: Function) -> Counter[tuple[str, str]]:
        """How many ops of each kind the compute plan puts where, constants left out: (kind, place) → count.

        Places are cpu, gpu and neuralengine.
        """
        from coremltools.models.compute_plan import MLComputePlan

        plan = MLComputePlan.load_from_path(str(self._path), self._units())
        found: Counter[tuple[str, str]] = Counter()
        for op in plan.model_structure.program.functions[function.name].block.operations:
            usage = plan.get_compute_device_usage_for_mlprogram_operation(op)
            if usage is not None and not op.operator_name.startswith("const"):
                device = type(usage.preferred_compute_device).__name__
                found[op.operator_name, device.removeprefix("ML").removesuffix("ComputeDevice").lower()] += 1
        return found

    def _load(self, function: Function) -> Any:
        import coremltools

        if self._device in _STRICT:
            _check_placement(self.placement(function), self._device, function.name)
        try:
            return coremltools.models.CompiledMLModel(str(self._path), self._units(), function.name)
        except Exception as error:  # of types that coremltools does not document
            raise BundleError(f"{self._path}: Core ML refuses {function.name}: {error}") from error

    def _units(self) -> Any:
        import coremltools

        return getattr(coremltools.ComputeUnit, _UNITS[self._device.partition("+")[0]])


def _check_placement(found: Counter[tuple[str, str]], device: str, function: str) -> None:
    """Raise DeviceError for ops that would run on the processor without a word."""
    fallen = Counter({kind: count for (kind, place), count in found.items() if place == "cpu"})
    if fallen:
        named = ", ".join(f"{count} {kind}" for kind, count in fallen.most_common(_SHOWN))
        raise DeviceError(
            f"Core ML would run {fallen.total()} of {found.total()} ops of {function} on the processor ({named}); "
            f"choose the device {device}+cpu to let it"
        )


def _compiled(bundle: Bundle) -> Path:
    """The compiled package, from the cache where the same package was compiled before."""
    import coremltools

    files = bundle.manifest.files
    path = cache_folder() / "coreml" / f"{files[MODEL].sha256[:16]}-{files[BLOBS].sha256[:16]}.mlmodelc"
    if path.is_dir():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        made = Path(scratch) / path.name
        try:
            coremltools.models.utils.compile_model(str(bundle.path / PACKAGE), str(made))
        except Exception as error:  # of types that coremltools does not document
            raise BundleError(f"{bundle.path / PACKAGE}: Core ML's compiler refuses it: {error}") from error
        if not path.is_dir():  # another process may have been faster
            shutil.move(made, path)
    return path
