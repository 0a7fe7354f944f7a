"""Gates: what is no condition, what passes, and that nothing is published but the report where one fails."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from edge.bundle import open_bundle
from edge.cli import main
from edge.errors import GateError, OptionError
from edge.measured import Closeness, Copies, Greedy, Measured, Measurement
from edge.quality import Comparison, ParityReport, QualityReport, RuntimeQuality, SchemeUse
from exporters import gate
from exporters.report import measure
from tests.exporters.exported import contents


def row(text: str, kl: float, *, kv: str = "auto", length: int = 512) -> Measurement:
    found = Closeness(
        10.0, kl, 9 * kl, 1 - kl, 1 - kl / 2, {"128": kl, "512": kl}, Copies(10, 0.8, 0.6), Greedy(8, 64, 100 * kl, 0.0)
    )
    return Measurement(text, kv, {"float16": 2}, length, 8192, 10 + kl, found)


FULL = QualityReport(
    {"int4-g32-sym": SchemeUse(3, 0, 8_000_000, 4_500_000)},
    measured=Measured(
        "native",
        "source",
        {},
        (
            row("prose", 0.1), row("prose", 0.5, length=8192), row("code", 0.2), row("dialogue", 0.3),
            row("prose", 0.15, kv="int8"), row("code", 0.25, kv="int8"),
        ),
    ),
)  # fmt: skip


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
        gate.check(found, report(kl, top1), target, "x")
        assert not list(tmp_path.iterdir())
        return
    with pytest.raises(GateError) as caught:
        gate.check(found, report(kl, top1), target, "x")
    assert f"failed: {told}; nothing was published, and the report is {tmp_path / 'x.quality.json'}" in str(
        caught.value
    )


def test_what_was_not_compared_fails(tmp_path: Path) -> None:
    with pytest.raises(GateError, match="kl<=9 asked for, and that was not compared with the source"):
        gate.check(gate.parse("kl<=9"), QualityReport(), tmp_path / "x.dsedge", "x")
    with pytest.raises(GateError, match=r"long\.greedy>=1 asked for, and that was not compared"):
        gate.check(gate.parse("long.greedy>=1"), replace(FULL, measured=None), tmp_path / "x.dsedge", "x")


@pytest.mark.parametrize(
    ("condition", "value"),
    [
        ("kl<=0", 0.2), ("code.kl<=0", 0.2), ("worst.kl<=0", 0.3), ("worst.top1>=2", 0.7), ("long.kl<=0", 0.5),
        ("int8.kl<=0", 0.2), ("p99<=0", 1.8), ("dialogue.top5>2", 0.85), ("prose.perplexity<1", 1.01),
        ("copied>=1", 0.75), ("greedy>=64", 20.0), ("bits<4", 4.5), ("mb<4", 4.5),
    ],
)  # fmt: skip
def test_every_name_tells_its_figure(condition: str, value: float, tmp_path: Path) -> None:
    (parsed,) = gate.parse(condition)
    assert parsed.value(FULL) == pytest.approx(value)
    assert str(parsed) == condition
    with pytest.raises(GateError, match=f"{value:.4g} reached"):
        gate.check([parsed], FULL, tmp_path / "x.dsedge", "x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.quality.html", "x.quality.json"]


def test_a_report_is_as_thorough_as_its_gate_needs() -> None:
    for text, needed in (("kl<1,top1>0,bits<5,mb<9", "quick"), ("kl<1,code.kl<1", "full"), ("top5>0", "full")):
        assert gate.mode(gate.parse(text), None) == needed
    assert gate.mode(gate.parse("kl<1"), "full") == "full"
    assert gate.mode((), None) == "quick"
    with pytest.raises(OptionError, match=r"a quick report does not tell int8\.kl<1"):
        gate.mode(gate.parse("kl<1,int8.kl<1"), "quick")
    with pytest.raises(OptionError, match="unknown report 'long'; known are quick, full"):
        gate.mode((), "long")


@pytest.mark.parametrize(
    "text",
    [
        "", "kl", "kl<=", "kl=0.1", "ppl<=3", "kl<=0.1,,top1>0", "kl<=1e999", "kl<=.", "kl<=nan", "code.bits<5",
        "poems.kl<1", ".kl<1", "code.<1", "code.kl.top1<1",
    ],
)  # fmt: skip
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="is no condition"):
        gate.parse(text)


def test_an_unknown_name_is_told_the_known_ones() -> None:
    with pytest.raises(
        OptionError, match=r"nothing is called ppl; metrics are kl, p99, .*, bits, mb; before one, .*code"
    ):
        gate.parse("ppl<=3")


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


def test_a_full_report_is_in_the_bundle_and_its_summary_in_the_manifest(
    llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "TOKENS", 512)
    out = tmp_path / "tiny.dsedge"
    line = ["export", str(llama_folder), "-o", str(out), "--targets", "none", "--gate", "code.kl<=100,worst.top1>=0"]
    assert main(line) == 0
    bundle = open_bundle(out)
    told = QualityReport.from_json(json.loads((out / "report" / "quality.json").read_text(encoding="utf-8")))
    assert told.summary() == bundle.manifest.quality
    assert told.costs is not None
    assert len(told.costs.layers) == 2
    assert "report/quality.html" in bundle.manifest.files
    assert main([*line[:-1], "worst.kl<=1e-9", "--force"]) == 3
    assert told == QualityReport.from_json(json.loads((tmp_path / "tiny.quality.json").read_text(encoding="utf-8")))
    assert (tmp_path / "tiny.quality.html").read_text(encoding="utf-8") == (out / "report" / "quality.html").read_text(
        encoding="utf-8"
    )
