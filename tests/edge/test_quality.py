"""The quality report as JSON, and what is printed of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from edge.commands.quality import note_quality
from edge.quality import Comparison, ParityReport, QualityReport, RuntimeQuality, SchemeUse
from tests.exporters.test_gate import FULL

LITTLE, MUCH = Comparison(0.5, 2.0, 0.0123, 0.984), Comparison(3.0, 2.0, 0.1001, 0.61)


def report(native: Comparison, onnx: Comparison) -> QualityReport:
    runtimes = {
        "native": RuntimeQuality(LITTLE, LITTLE, native),
        "onnx": RuntimeQuality(LITTLE, LITTLE, onnx),
    }
    return QualityReport(
        {"float32": SchemeUse(1, 0, 2, 8)},
        ("a", "b"),
        ParityReport(128, runtimes, "native", MUCH, {"coreml": "no Mac"}),
    )


def test_a_report_survives_json() -> None:
    for found in (report(LITTLE, MUCH), QualityReport(), QualityReport(notes=("x",))):
        assert QualityReport.from_json(json.loads(json.dumps(found.to_json()))) == found


def broken(path: str, value: Any) -> dict[str, Any]:
    data = report(LITTLE, MUCH).to_json()
    *parents, last = path.split(".")
    inner: Any = data
    for name in parents:
        inner = inner[name]
    inner[last] = value
    return data


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("schemes", []), ("schemes.float32", 3), ("schemes.float32.bytes", -1), ("schemes.float32.bytes", True),
        ("notes", "a"), ("notes", [1]), ("parity", []), ("parity.tokens", "9"), ("parity.tokens", -1),
        ("parity.auto", "coreml"), ("parity.runtimes", None), ("parity.runtimes.onnx", {}),
        ("parity.runtimes.onnx.used", None), ("parity.source.mean_kl", "0"), ("parity.source.top1", None),
    ],
)  # fmt: skip
def test_what_is_no_report(path: str, value: Any) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        QualityReport.from_json(broken(path, value))


def test_n15_the_line_is_of_the_runtime_that_auto_picked(capsys: pytest.CaptureFixture[str]) -> None:
    note_quality(report(LITTLE, MUCH))
    assert capsys.readouterr().err == (
        "quality: mean KL 0.0123, same top token 98.4% (runtime native against the source's weights, 128 tokens)\n"
    )
    note_quality(report(MUCH, LITTLE))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("quality: mean KL 0.1001, same top token 61.0%")
    assert "a mean KL above 0.1: answers will often differ" in lines[1]
    assert "--recipe int8" in lines[1]
    full = replace(report(LITTLE, MUCH), measured=FULL.measured)
    note_quality(full)
    told = capsys.readouterr().err
    assert "mean KL 0.2000, same top token 80.0% (runtime native against the source's weights, 24576 tokens of" in told
    assert full.measured is not None
    note_quality(replace(full, measured=replace(full.measured, other="an older bundle")))
    assert "mean KL 0.0123" in capsys.readouterr().err
    note_quality(QualityReport(notes=("a", "too large")))
    assert capsys.readouterr().err == "quality: not compared with the source (too large)\n"
