"""Readers of files from elsewhere under hostile input: an EdgeError or a model, within bounded memory, never worse.

The same inputs at every run; `python -m tests.fuzz` looks for new ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.__main__ import NAMES
from tests.fuzz.limits import bounded_memory
from tests.fuzz.mutations import EDITS, JSON_EDITS, edit_bytes, edit_document
from tests.fuzz.targets import TARGETS, Target, attempt

MEMORY = 512 << 20
BOUNDED = settings(max_examples=500, deadline=None, derandomize=True, database=None)


class Bench:
    """A target with its seeds, and a folder to try inputs in."""

    def __init__(self, name: str, folder: Path) -> None:
        self.target: Target = TARGETS[name]
        self.folder = folder / "work"
        self.folder.mkdir()
        (folder / "seeds").mkdir()
        self.seeds = self.target.seeds(folder / "seeds")

    def try_(self, data: bytes) -> str | None:
        with bounded_memory(MEMORY):
            return attempt(self.target, data, self.folder)


@pytest.fixture(scope="module", params=TARGETS)
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp(request.param)
        patch.setenv("DSEDGE_CACHE", str(folder / "cache"))
        yield Bench(request.param, folder)


def test_the_command_knows_every_target() -> None:
    assert tuple(TARGETS) == NAMES


def test_seeds_are_taken(bench: Bench) -> None:
    """Else nothing behind the first check would be reached."""
    assert [bench.try_(seed) for seed in bench.seeds] == [None] * len(bench.seeds)


@given(seed=st.integers(0, 99), edits=EDITS)
@BOUNDED
def test_any_bytes(bench: Bench, seed: int, edits: list[tuple[str, float, int]]) -> None:
    bench.try_(edit_bytes(bench.seeds[seed % len(bench.seeds)], edits))


@given(seed=st.integers(0, 99), edits=JSON_EDITS)
@BOUNDED
def test_any_document(bench: Bench, seed: int, edits: list[tuple[bool, int, Any]]) -> None:
    if bench.target is not TARGETS["gguf"]:
        bench.try_(edit_document(bench.seeds[seed % len(bench.seeds)], edits))


@given(data=st.binary(max_size=200))
@BOUNDED
def test_noise(bench: Bench, data: bytes) -> None:
    bench.try_(data)
