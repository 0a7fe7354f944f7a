"""Models of the Hugging Face hub, by its own client: it knows HF_ENDPOINT, HF_TOKEN and the proxies, and resumes."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from edge.errors import UnsupportedError, UserError
from edge.files import REFUSALS
from edge.progress import Progress, report_transfer
from edge.sources.addresses import is_offline
from edge.sources.proxies import loopback_direct

# What an export reads; repositories also hold the same weights in other formats.
_WANTED = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model")
_UNWANTED = ("*/*", "consolidated*")
_SAMPLE_S = 0.5


@dataclass(frozen=True, slots=True)
class Repository:
    """What the hub says of a repository: its commit, the bytes of its files by name (0: unknown), its license."""

    commit: str
    sizes: Mapping[str, int]
    license: str


def look(repo: str, revision: str = "main") -> Repository:
    """Ask the hub what a repository holds. Raises as `download_folder` does."""
    with _translated():
        info = _client().HfApi(**_options()).model_info(repo, revision=revision, files_metadata=True)
        card = info.card_data or {}
        return Repository(
            info.sha, {item.rfilename: item.size or 0 for item in info.siblings}, str(card.get("license") or "unknown")
        )


def wanted_bytes(found: Repository) -> int:
    """The bytes of what `download_folder` fetches."""
    return sum(size for name, size in found.sizes.items() if _is_wanted(name))


def download_file(repo: str, revision: str, file: str, folder: Path, progress: Progress, *, size: int) -> Path:
    """One file of a repository, somewhere below `folder`, which is resumed in. Raises as `download_folder` does."""
    with _translated(), _watched(folder, f"download {repo}/{file}", size, progress):
        return Path(_client().hf_hub_download(repo, file, revision=revision, local_dir=folder, **_options()))


def download_folder(repo: str, revision: str, folder: Path, progress: Progress, *, size: int) -> None:
    """The config, tokenizer and safetensors of a repository, into `folder`, which is resumed in and holds nothing else.

    Raises UserError for what the hub refuses, UnsupportedError without the client, OSError when the file system does.
    """
    # The client takes a folder that exists for the repository when it cannot reach the hub, so the hub is asked
    # first what there is; and naming the commit keeps all files of one version.
    progress(f"look at {repo}", 0.0)
    found = look(repo, revision)
    wanted = [name for name in found.sizes if _is_wanted(name)]
    total = wanted_bytes(found) or size
    with _translated(), _watched(folder, f"download {repo}", total, progress):
        if not wanted:
            raise UserError("the repository holds no safetensors and no config")
        _client().snapshot_download(repo, revision=found.commit, local_dir=folder, allow_patterns=wanted, **_options())
        missing = [name for name in wanted if not (folder / name).is_file()]
        if missing:
            raise UserError(f"{missing[0]} did not arrive; run the command again to go on")
        for stray in [path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")]:
            if stray.name not in wanted:
                stray.unlink()  # of another version, whose download broke off


def _is_wanted(name: str) -> bool:
    return any(fnmatchcase(name, p) for p in _WANTED) and not any(fnmatchcase(name, p) for p in _UNWANTED)


def _client() -> Any:
    try:
        hub = importlib.import_module("huggingface_hub")
        # Its bars would fill a pipe; progress is watched from here.
        importlib.import_module("huggingface_hub.utils").disable_progress_bars()
    except ImportError as error:
        raise UnsupportedError(
            "the Hugging Face hub needs its client: pip install 'dsedge[hub]' (or another source of the model)"
        ) from error
    return hub


def _options() -> dict[str, str | None]:
    return {"endpoint": os.environ.get("HF_ENDPOINT") or None}


@contextmanager
def _translated() -> Iterator[None]:
    """The client's errors, of many kinds and libraries, as one line; those of the disk as they are."""
    try:
        with loopback_direct():
            yield
    except UserError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in REFUSALS:
            raise
        if is_offline(error):
            raise UserError("no network: the hub cannot be reached") from error
        gated = type(error).__name__ == "GatedRepoError"
        reason = "its owner asks you to accept terms there first; then set HF_TOKEN" if gated else _first_line(error)
        raise UserError(reason) from error


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


@contextmanager
def _watched(folder: Path, stage: str, size: int, progress: Progress) -> Iterator[None]:
    """Report twice a second how much of `size` bytes lies below the folder."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_SAMPLE_S):
            report_transfer(progress, stage, _bytes_below(folder), size or None)

    report_transfer(progress, stage, 0, size or None)
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _bytes_below(folder: Path) -> int:
    total = 0
    for path, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.stat(os.path.join(path, name)).st_size
            except FileNotFoundError:
                continue  # the client renamed it meanwhile
    return total
