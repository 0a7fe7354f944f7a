"""Tiny checkpoints shared by the tests below, and a way to open sources that closes them again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from edge.bundle import Bundle
from exporters.checkpoint import Checkpoint
from exporters.checkpoint.open import open_checkpoint
from exporters.export import export
from tests.exporters.tiny import tiny_llama, tiny_qwen2


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama folder. Shared: read it, copy it, never change it."""
    return tiny_llama(tmp_path_factory.mktemp("tiny") / "llama")


@pytest.fixture(scope="session")
def qwen2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen2 folder. Shared: read it, copy it, never change it."""
    return tiny_qwen2(tmp_path_factory.mktemp("tiny") / "qwen2")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache folder of the test's own."""
    monkeypatch.setenv("DSEDGE_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def llama_bundle(llama_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The tiny Llama as a bundle. Shared: never change it."""
    folder = tmp_path_factory.mktemp("export")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DSEDGE_CACHE", str(folder / "cache"))
        return export(llama_folder, folder / "tiny.dsedge")


@pytest.fixture
def opened() -> Iterator[Callable[[Path], Checkpoint]]:
    """`open_checkpoint`, with everything that it opened closed after the test."""
    with ExitStack() as stack:
        yield lambda path: stack.enter_context(closing(open_checkpoint(path)))
