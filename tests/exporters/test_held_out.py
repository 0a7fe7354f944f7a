"""The texts of the quality report: long enough, named, and apart from what an export calibrates on."""

from __future__ import annotations

import re

import pytest

from edge import texts
from edge.errors import OptionError
from exporters.calibration import text as calibration
from exporters.report import texts as held_out


def test_every_domain_is_there_and_named() -> None:
    for name, domain in held_out.DOMAINS.items():
        found = held_out.read(name)
        assert found is not None, name
        assert len(found) > 35_000, name
        assert domain.source, name
        assert domain.license, name


def test_the_domains_are_what_they_are_called() -> None:
    prose, code, dialogue = (held_out.read(name) or "" for name in ("prose", "code", "dialogue"))
    assert len(re.findall(r"\bdef \w+\(", code)) > 30
    assert "typedef struct" in code
    assert len(re.findall(r"^(User|System): ", dialogue, re.MULTILINE)) > 400
    assert len(re.findall(r"\d", dialogue)) > len(dialogue) / 40
    assert " @-@ " not in prose
    assert "<unk>" not in prose


def test_the_built_in_calibration_text_shares_nothing_with_them() -> None:
    documents = [item["text"] for item in map(texts.parse_json, texts.read(calibration.MIX).splitlines())]
    calibration.check_apart("mix", documents, held_out.measured())
    taken = (held_out.read("dialogue") or "")[500:1000]
    with pytest.raises(OptionError, match="that the result is measured on"):
        calibration.check_apart("taken", [taken], held_out.measured())


def test_a_text_that_is_not_installed_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_out, "_LIBRARY", ("no such module.py",))
    assert held_out.read("code") is None
    assert len(held_out.measured()) == 2
