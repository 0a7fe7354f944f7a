"""What "auto" means where there is a GPU, on backends that are made up; and what is remembered of measurements."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edge import choosing, remembered, runtime
from edge.errors import DeviceError, OptionError
from edge.options import RuntimeOptions
from edge.runtime import Support
from runtimes import scripted
from runtimes.scripted import write_bundle


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSEDGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remembered, "_known", {})


class Backends:
    """A table of two backends over the scripted runtime: `slow` on the processor, `quick` with a GPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: list[str] = []
        self.delays = {"slow": 0.002, "quick": 0.0}
        self.devices = {"slow": ("cpu",), "quick": ("cuda", "cpu")}
        self.errors: dict[str, Exception] = {}
        monkeypatch.setattr(runtime, "RUNTIMES", {name: f"tests.made_up_{name}" for name in self.delays})
        monkeypatch.setattr(runtime, "GPUS", ("quick",))
        for name in self.delays:
            module: Any = ModuleType(f"tests.made_up_{name}")
            module.support = lambda name=name: Support(self.devices[name])
            module.open_model = lambda bundle, layout, options, name=name: self._open(name, bundle, layout)
            monkeypatch.setitem(sys.modules, module.__name__, module)

    def _open(self, name: str, bundle: Any, layout: Any) -> Any:
        self.opened.append(name)
        if name in self.errors:
            raise self.errors[name]
        made = scripted.ScriptedRuntime(bundle, layout)
        made._delay = self.delays[name]
        return made


@pytest.fixture
def backends(monkeypatch: pytest.MonkeyPatch) -> Backends:
    return Backends(monkeypatch)


def chosen(tmp_path: Path, **options: Any) -> str:
    path = tmp_path / "a.dsedge"
    bundle = write_bundle(path, ["x"]) if not path.exists() else scripted.bundles.open_bundle(path)
    return runtime.chosen(bundle, RuntimeOptions(**options))


def test_the_faster_one_is_taken_and_measured_once(backends: Backends, tmp_path: Path) -> None:
    assert chosen(tmp_path) == "quick"
    assert backends.opened == ["slow", "quick"]
    assert chosen(tmp_path) == "quick"
    remembered._known.clear()  # another process
    assert chosen(tmp_path) == "quick"
    assert backends.opened == ["slow", "quick"]
    slow, quick = choosing.told()
    assert slow.startswith("scripted slow cpu: prefill ")
    assert quick.startswith("scripted quick cuda: prefill ")


def test_a_gpu_that_is_slower_is_not_taken(backends: Backends, tmp_path: Path) -> None:
    backends.delays = {"slow": 0.0, "quick": 0.002}
    assert chosen(tmp_path) == "slow"


def test_a_gpu_that_cannot_hold_the_model_is_not_taken_and_told_why(backends: Backends, tmp_path: Path) -> None:
    backends.errors["quick"] = OptionError("cuda has no memory for weights of 9 MB")
    assert chosen(tmp_path) == "slow"
    assert choosing.told()[1] == "scripted quick cuda: cuda has no memory for weights of 9 MB"


def test_without_a_gpu_nothing_is_measured(backends: Backends, tmp_path: Path) -> None:
    backends.devices["quick"] = ("cpu",)
    assert chosen(tmp_path) == "slow"
    assert backends.opened == []


def test_a_device_finds_its_backend(backends: Backends, tmp_path: Path) -> None:
    assert chosen(tmp_path, device="cuda") == "quick"
    assert chosen(tmp_path, device="cpu") == "slow"
    assert backends.opened == []
    bundle = scripted.bundles.open_bundle(tmp_path / "a.dsedge")
    assert runtime.chosen(bundle, RuntimeOptions(device="npu")) == "slow"  # which then says what is there
    with pytest.raises(DeviceError, match="'npu' is not usable by runtime scripted; here are: cpu"):
        scripted.pick_device("scripted", RuntimeOptions(device="npu"), ("cpu",))


def test_an_option_finds_the_backend_that_has_it(
    backends: Backends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "SPECIAL", {"compute": ("quick",)})
    assert chosen(tmp_path, compute="float16") == "quick"
    assert backends.opened == []


def test_another_bundle_or_option_is_measured_anew(backends: Backends, tmp_path: Path) -> None:
    chosen(tmp_path)
    chosen(tmp_path, threads=1)
    assert backends.opened == ["slow", "quick"] * 2


@pytest.mark.parametrize("damaged", [3, [], {"prompt_s": "x"}, {"prompt_s": 0.0, "token_s": 1.0}, {"speed": 1}])
def test_a_damaged_entry_is_measured_anew(damaged: Any, backends: Backends, tmp_path: Path) -> None:
    chosen(tmp_path)
    found = json.loads(remembered.path().read_text())
    remembered.path().write_text(json.dumps({choosing.KIND: dict.fromkeys(found[choosing.KIND], damaged)}))
    remembered._known.clear()
    assert choosing.told() == []
    assert chosen(tmp_path) == "quick"
    assert backends.opened == ["slow", "quick"] * 2


def test_the_file_keeps_the_latest_and_survives_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "_MOST", 3)
    for number in range(5):
        remembered.remember("chunk", str(number), number)
    assert json.loads(remembered.path().read_text())["chunk"] == {"2": 2, "3": 3, "4": 4}
    remembered._known.clear()
    assert remembered.recall("chunk", "4") == 4
    assert remembered.recall("chunk", "0") is None
    for damaged in ("{", "[1]", '{"chunk": 3}'):
        remembered.path().write_text(damaged)
        assert remembered.recall("chunk", "4") is None
    remembered.remember("chunk", "9", 9)
    remembered._known.clear()
    assert remembered.recall("chunk", "9") == 9


def test_a_cache_that_cannot_be_written_to_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DSEDGE_CACHE", str(tmp_path / "file" / "cache"))
    remembered.remember("chunk", "a", 64)
    assert remembered.recall("chunk", "a") == 64
