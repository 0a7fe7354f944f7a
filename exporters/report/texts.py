"""The texts of the quality report: three domains, each from a named source with a license; no calibration sees them.

Prose and dialogue ship with the exporter (held_out/LICENSES; benchmarks/report_texts.py wrote them). Code is read from
where it is installed anyway: Python's standard library and numpy's headers. A report names the SHA-256 of each text, so
that reports on different versions of it can be told apart.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edge import texts

_HERE = Path(__file__).parent / "held_out"
_LIBRARY = ("graphlib.py", "sched.py", "bisect.py", "queue.py")
_HEADERS = ("numpy/ufuncobject.h",)


@dataclass(frozen=True, slots=True)
class Domain:
    """Where a text is from, and under which license; `files` says which files make it up, in this order."""

    source: str
    license: str
    files: Callable[[], tuple[Path, ...]]


def _code() -> tuple[Path, ...]:
    library, headers = Path(sysconfig.get_path("stdlib")), Path(np.get_include())
    python = [library / name for name in _LIBRARY]
    return (*python[:2], *(headers / name for name in _HEADERS), *python[2:])


DOMAINS: Mapping[str, Domain] = {
    "prose": Domain("WikiText-2, test set", "CC BY-SA 3.0", lambda: (_HERE / "prose.txt",)),
    "code": Domain("Python's standard library and numpy's headers", "PSF-2.0, BSD-3-Clause", _code),
    "dialogue": Domain("Schema-Guided Dialogue, test set", "CC BY-SA 4.0", lambda: (_HERE / "dialogue.txt",)),
}


def read(domain: str) -> str | None:
    """The text of a domain; None where its files are not installed."""
    try:
        return "\n\n".join(texts.read(path) for path in DOMAINS[domain].files())
    except (OSError, ValueError):
        return None


def measured() -> tuple[str, ...]:
    """Every text that a report is made on, to keep them out of calibration."""
    return tuple(text for text in map(read, DOMAINS) if text is not None)
