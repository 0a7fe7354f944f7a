"""The Core ML backend without Core ML: the interpreter takes its place and sees what it is given."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import edge
from edge.bundle import Bundle
from edge.coreml_interface import Function, inputs
from edge.errors import BundleError, DeviceError, UnsupportedError
from edge.kv import plan_layout
from edge.options import RuntimeOptions
from edge.runtime import open_runtime, support
from edge.session import Session
from exporters.reference import Reference
from runtimes import coreml_runtime
from runtimes.coreml_interpreter.evaluate import Interpreter
from runtimes.coreml_interpreter.model import Package
from tests.coreml_host import COREML
from tests.exporters.tiny import tiny_llama

pytestmark = COREML


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("coreml")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DSEDGE_CACHE", str(folder / "cache"))
        return edge.export(tiny_llama(folder / "m"), folder / "x.dsedge", targets=("coreml",), contexts=(128,))


@dataclass
class FakeCoreMl:
    """Compiles by copying, predicts by interpreting, and places ops where it is told to."""

    bundle: Bundle
    compiled: list[str] = field(default_factory=list)
    loaded: list[tuple[str, str]] = field(default_factory=list)
    on_cpu: tuple[str, ...] = ()
    refuses: bool = False

    def module(self) -> ModuleType:
        module: Any = ModuleType("coremltools")
        module.__spec__ = ModuleSpec("coremltools", None)
        module.ComputeUnit = SimpleNamespace(CPU_ONLY="cpu", CPU_AND_GPU="gpu", CPU_AND_NE="ane")
        module.models = SimpleNamespace(
            CompiledMLModel=self.load, utils=SimpleNamespace(compile_model=self.compile_model)
        )
        return module

    def plans(self) -> ModuleType:
        module: Any = ModuleType("coremltools.models.compute_plan")
        module.MLComputePlan = SimpleNamespace(load_from_path=self.plan)
        return module

    def compile_model(self, path: str, target: str) -> None:
        if self.refuses:
            raise RuntimeError("no such opset")
        self.compiled.append(path)
        shutil.copytree(path, target)

    def load(self, path: str, units: str, name: str) -> Any:
        self.loaded.append((name, units))
        interpreter = Interpreter(Package(Path(path)), half=True)

        def predict(given: dict[str, Any]) -> dict[str, Any]:
            wanted = inputs(self.bundle.spec, Function(name.partition("_")[0], 128))  # type: ignore[arg-type]
            assert {key: array.dtype.name for key, array in given.items()} == {k: v.dtype for k, v in wanted.items()}
            return dict(interpreter.run(name, given))

        return SimpleNamespace(predict=predict)

    def plan(self, path: str, units: str) -> Any:
        kinds = {"const": None, "linear": "MLGPUComputeDevice", "gather": "MLGPUComputeDevice"}
        kinds |= dict.fromkeys(self.on_cpu, "MLCPUComputeDevice")
        operations = [SimpleNamespace(operator_name=kind) for kind in kinds]
        block = SimpleNamespace(block=SimpleNamespace(operations=operations))
        names = [f"{kind}_128" for kind in ("decode", "prefill", "score")]

        def usage(op: Any) -> Any:
            device = kinds[op.operator_name]
            return None if device is None else SimpleNamespace(preferred_compute_device=type(device, (), {})())

        program = SimpleNamespace(functions=dict.fromkeys(names, block))
        return SimpleNamespace(
            model_structure=SimpleNamespace(program=program), get_compute_device_usage_for_mlprogram_operation=usage
        )


@pytest.fixture
def core_ml(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCoreMl:
    fake = FakeCoreMl(bundle)
    monkeypatch.setenv("DSEDGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "coremltools", fake.module())
    monkeypatch.setitem(sys.modules, "coremltools.models.compute_plan", fake.plans())
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr("platform.mac_ver", lambda: ("15.4", ("", "", ""), "arm64"))
    return fake


def opened(bundle: Bundle, **options: Any) -> Any:
    layout = plan_layout(bundle.spec, 64)
    return open_runtime(bundle, layout, RuntimeOptions(runtime="coreml", **options))


def test_it_computes_what_the_package_says_and_compiles_once(core_ml: FakeCoreMl, bundle: Bundle) -> None:
    ids = [int(i) for i in np.random.default_rng(0).integers(3, 300, 20)]
    expected = Reference(bundle.graph, bundle.weights.read, context=64).run(ids)
    for _ in range(2):
        runtime = opened(bundle)
        session = Session(runtime)
        session.feed(ids[:19])
        found = session.feed(ids[19:])
        assert found is not None
        assert np.abs(found - expected[-1]).max() < 0.2
        assert runtime.device == "gpu+cpu"
        runtime.close()
    assert len(core_ml.compiled) == 1
    assert core_ml.loaded == [("prefill_128", "gpu"), ("decode_128", "gpu")] * 2


def test_a_silent_fall_to_the_processor_is_an_error_unless_allowed(core_ml: FakeCoreMl, bundle: Bundle) -> None:
    core_ml.on_cpu = ("linear",)
    with pytest.raises(
        DeviceError, match=r"would run 1 of 2 ops of decode_128 on the processor \(1 linear\); choose .*gpu\+cpu"
    ):
        Session(opened(bundle, device="gpu")).feed([5])
    Session(opened(bundle, device="gpu+cpu")).feed([5])
    Session(opened(bundle, device="cpu")).feed([5])
    core_ml.on_cpu = ()
    Session(opened(bundle, device="gpu")).feed([5])
    placed = coreml_runtime.Models(bundle, "gpu").placement(Function("decode", 128))
    assert placed == Counter({("linear", "gpu"): 1, ("gather", "gpu"): 1})


def test_what_it_cannot_do_is_said(core_ml: FakeCoreMl, bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedError, match="Core ML computes in float16; --runtime coreml-interpreter"):
        opened(bundle, exact=True)
    with pytest.raises(DeviceError, match=r"'npu' is not usable by runtime coreml; here are: gpu\+cpu"):
        opened(bundle, device="npu")
    core_ml.refuses = True
    with pytest.raises(BundleError, match="Core ML's compiler refuses it: no such opset"):
        opened(bundle)
    monkeypatch.setattr("platform.mac_ver", lambda: ("14.7", ("", "", ""), "arm64"))
    assert support("coreml").reason == "macOS 14.7 is older than 15, which the packages need"


def test_elsewhere_the_reason_names_what_runs_there() -> None:
    found = support("coreml")
    assert found.devices == () or sys.platform == "darwin"
    assert sys.platform == "darwin" or "--runtime coreml-interpreter runs anywhere" in found.reason
