"""The measurement of a GPU, with what it measures made small: a shape's bundle, rows and reasons of a report."""

from __future__ import annotations

import argparse
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge.kv import plan_layout
from edge.options import RuntimeOptions
from edge.runtime import open_runtime
from edge.session import Session
from exporters.reference import Reference

if not find_spec("torch"):
    pytest.skip("torch is not installed", allow_module_level=True)

from benchmarks import device, shapes
from edge.bundle import Bundle


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    monkeypatch.setitem(shapes.SHAPES, "tiny", (3, 256, 384, 2, 1, 500))
    return shapes.write(tmp_path / "tiny", shapes.spec_of("tiny"))


def test_a_shape_has_other_bytes_in_every_layer_and_computes_ordinary_numbers(bundle: Bundle) -> None:
    codes = [bundle.weights.tensor(f"layers.{n}.attn.q.codes") for n in range(3)]
    assert not any(np.array_equal(codes[a], codes[b]) for a, b in ((0, 1), (0, 2), (1, 2)))
    logits = Reference(bundle.graph, bundle.weights.read, context=32).run(list(range(32)))
    assert 0.3 < logits.std() < 3
    runtime = open_runtime(bundle, plan_layout(bundle.spec, 32, chunk=32), RuntimeOptions(runtime="torch"))
    found = Session(runtime).step(list(range(32)), "all")
    runtime.close()
    assert (found - logits).std() < 0.05 * logits.std()


def test_the_report_has_a_row_an_engine_and_a_reason_for_what_is_missing(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(device.shapes, "SHAPES", {**shapes.SHAPES, "1.5b": shapes.SHAPES["tiny"]})
    monkeypatch.setattr(device, "_conformance", lambda report, seconds: None)
    given = ["device", "--device", "cpu", "--without-default", "--prompt", "16", "--new", "4", "--copy-mb", "1"]
    monkeypatch.setattr("sys.argv", [*given, "--minutes", "0.9"])
    assert device.main() == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["copy_gb_s"] > 0
    torch_row, native_row = report["speeds"]
    assert torch_row["engine"] == "dsedge torch (cpu)"
    assert torch_row["share"] > 0
    assert native_row["share"] is None
    assert any(line.startswith("7b shape: ") and "takes 60 at least" in line for line in report["skipped"])


def test_peers_that_are_missing_are_named() -> None:
    report: Any = device.Report("", "cpu")
    peer = device.device_peers.Peer("other", "no_such_module", "mlx", lambda *given: (0, 0, 0))
    device._peer(report, peer, argparse.Namespace(mlx=None))
    assert report.skipped == ["other: not installed"]
    here = device.device_peers.Peer("other", "json", "mlx", lambda *given: (1.0, 2.0, 4.0))
    device._peer(report, here, argparse.Namespace(mlx=None, prompt=16, new=8))
    assert report.skipped[1] == "other: needs a model of its own format: --mlx PATH"
    device._peer(report, here, argparse.Namespace(mlx="x", prompt=16, new=8))
    assert report.speeds == [device.Speed("smollm2", "other", 8.0, 2.0, 2000.0, 1.0, None)]
