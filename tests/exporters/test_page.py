"""The page of the quality report: everything that the report tells, nothing from outside, whatever names hold."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from edge.measured import Costs, LayerCosts, TextSource
from edge.quality import Comparison, ParityReport, QualityReport, RuntimeQuality
from exporters.report import charts, page
from tests.exporters.test_gate import FULL

HOSTILE = '<script>alert("x")</script> & "co"'


def whole() -> QualityReport:
    exact = Comparison(1e-5, 2.0, 1e-9, 1.0)
    layers = (LayerCosts(0.5, 0.25, (0.1, 0.4), (0.2,)), LayerCosts(0.125, 0.0625, (0.0, 0.025), (0.05,)))
    assert FULL.measured is not None
    texts = {"prose": TextSource(HOSTILE, "CC BY-SA 3.0", "ab" * 32)}
    measured = replace(FULL.measured, texts=texts, refused={"int8": HOSTILE})
    parity = ParityReport(128, {"native": RuntimeQuality(exact, exact, exact)}, "native", exact, {"onnx": HOSTILE})
    costs = Costs(80, {"down": 0.3, "key": 0.01}, layers)
    return replace(FULL, measured=measured, parity=parity, costs=costs, notes=(HOSTILE,))


def test_the_page_is_whole_and_asks_for_nothing() -> None:
    text = page.render(whole(), HOSTILE)
    assert text == page.render(whole(), HOSTILE)
    assert "<script" not in text
    assert re.search(r"(src|href)=|url\(|@import|https?://", text) is None
    body = ElementTree.fromstring(text.partition("<body>")[2].partition("</body>")[0].join(("<body>", "</body>")))
    assert body.findtext("h1") == HOSTILE
    assert len(body.findall(".//svg")) == 2  # KL by position, heads
    assert len(body.findall(".//dl")) == 2  # KL of each row, kinds
    said = "".join(body.itertext())
    for expected in ("0.2000", "80.0%", "+2.0%", "4.50", "8192", "CC BY-SA 3.0", "float16"):
        assert expected in said, expected


def test_a_heat_map_has_a_cell_for_each_number_and_a_scale_for_each_group() -> None:
    text = page.render(whole(), "x")
    svg = [part for part in text.split("<svg")[1:] if 'class="cell"' in part]
    assert len(svg) == 1
    assert svg[0].count('class="cell"') == 2 * (2 + 2 + 1)
    shades = re.findall(r'fill-opacity="([\d.]+)"><title>(layer [^<]+)', svg[0])
    by_cell = {title.rpartition(":")[0]: float(shade) for shade, title in shades}
    # The largest of each group is full: of the branches, the query heads, the heads of keys and values.
    assert by_cell["layer 0, attn"] == 1.0
    assert max(by_cell.values()) == 1.0
    assert by_cell["layer 1, q0"] == pytest.approx(0.04)
    assert by_cell["layer 1, attn"] == pytest.approx(0.04 + 0.96 * 0.5)


def test_a_quick_report_and_one_without_another_model_have_pages_too() -> None:
    assert "<h1>x</h1>" in page.render(QualityReport(), "x")
    measured = whole().measured
    assert measured is not None
    alone = replace(measured, other="", rows=tuple(replace(row, against=None) for row in measured.rows))
    text = page.render(QualityReport(measured=alone), "x")
    assert "<svg" not in text
    assert "10.10" in text


def test_bars_are_as_long_as_their_values() -> None:
    widths = [float(width) for width in re.findall(r'style="width:([\d.]+)%"', charts.bars({"a": 2, "b": 1}))]
    assert widths[0] == pytest.approx(2 * widths[1])
    assert "width:0.00%" in charts.bars({"a": 0.0})


def test_lines_begin_at_zero_and_have_even_ticks() -> None:
    text = charts.lines({"a": {128: 0.519, 512: 0.4}, "b": {256: 0.1}}, "x")
    assert re.findall(r'class="name"[^>]*>([^<]+)<', text) == ["0", "0.2", "0.4", "0.6", "0.8"]
    assert re.findall(r'class="tick"[^>]*>([^<]+)<', text) == ["128", "256", "512", "x"]
    assert len(re.findall("<circle", text)) == 3
