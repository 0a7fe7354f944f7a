"""Gates: what is no condition, what passes, and that nothing is published but the report where one fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edge.cli import main
from edge.errors import GateError, OptionError
from edge.quality import Comparison, ParityReport, QualityReport, RuntimeQuality
from exporters import gate
from tests.exporters.exported import contents


def report(kl: float, top1: float) -> QualityReport:
    exact, total = Comparison(0, 1, 0, 1), Comparison(1, 1, kl, top1)
    return QualityReport(parity=ParityReport(128, {"native": RuntimeQuality(exact, exact, total)}, "native", exact))


@pytest.mark.parametrize(
    ("conditions", "kl", "top1", "told"),
    [
        ("kl<=0.12,top1>=0.80", 0.12, 0.80, ""),
        (" kl < 0.12 ", 0.1199, 0.1, ""),
        ("kl<0.12", 0.12, 0.9, "kl<0.12 asked for, 0.12 reached"),
        ("kl<=1e-3,top1>0.5", 0.0011, 0.5, "kl<=0.001 asked for, 0.0011 reached; top1>0.5 asked for, 0.5 reached"),
        ("top1>=0.8", float("nan"), float("nan"), "top1>=0.8 asked for, nan reached"),
    ],
)
def test_conditions(conditions: str, kl: float, top1: float, told: str, tmp_path: Path) -> None:
    found, target = gate.parse(conditions), tmp_path / "x.dsedge"
    if not told:
        gate.check(found, report(kl, top1), target)
        assert not list(tmp_path.iterdir())
        return
    with pytest.raises(GateError) as caught:
        gate.check(found, report(kl, top1), target)
    assert f"failed: {told}; nothing was published, and the report is {tmp_path / 'x.quality.json'}" in str(
        caught.value
    )


def test_what_was_not_compared_fails(tmp_path: Path) -> None:
    with pytest.raises(GateError, match="nothing was compared with the source"):
        gate.check(gate.parse("kl<=9"), QualityReport(), tmp_path / "x.dsedge")


@pytest.mark.parametrize(
    "text", ["", "kl", "kl<=", "kl=0.1", "ppl<=3", "kl<=0.1,,top1>0", "kl<=1e999", "kl<=.", "kl<=nan"]
)
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="is no condition"):
        gate.parse(text)


def test_a_failed_gate_exits_with_3_and_leaves_the_older_bundle_and_the_report(
    llama_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "tiny.dsedge"
    line = ["export", str(llama_folder), "-o", str(out), "--targets", "none", "--force", "--gate"]
    assert main([*line, "kl<=100,top1>=0"]) == 0
    before = contents(out)
    assert main([*line, "top1>=0.01,kl<=1e-9"]) == 3
    assert "the gate failed: kl<=1e-09 asked for" in capsys.readouterr().err
    assert contents(out) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny.dsedge", "tiny.quality.json"]
    told = json.loads((tmp_path / "tiny.quality.json").read_text(encoding="utf-8"))
    assert told["parity"]["tokens"] == 128
    assert main([*line, "kl<=x"]) == 2
