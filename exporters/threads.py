"""One thread for each product of matrices, while samples or blocks of rows are worked on in parallel.

Several threads a product, times several samples at once, wait for each other more than they work (measured: four times
the processor time); and sums then come out in another order with another number of threads. numpy's own wheels
bring OpenBLAS, whose number of threads can be set; where another library does the products, they stay as they are.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import numpy as np

_SUFFIXES = ("64_", "")
_MOST = 8


@contextlib.contextmanager
def single() -> Iterator[bool]:
    """While it is open, a product of matrices takes one thread; False where that cannot be had."""
    found = _library()
    if found is None:
        yield False
        return
    library, suffix = found
    get, put = (getattr(library, f"scipy_openblas_{verb}_num_threads{suffix}") for verb in ("get", "set"))
    before = get()
    put(1)
    try:
        yield True
    finally:
        put(before)


@contextlib.contextmanager
def pool() -> Iterator[Executor]:
    """Threads for work whose results do not depend on how many there are: a product of matrices takes one of them."""
    with single() as alone, ThreadPoolExecutor(min(os.cpu_count() or 1, _MOST) if alone else 1) as found:
        yield found


def _library() -> tuple[ctypes.CDLL, str] | None:
    """OpenBLAS as numpy loaded it, and what its functions' names end in."""
    package = Path(np.__file__).parent
    folders = (package.parent / "numpy.libs", package / ".dylibs")
    for path in sorted(file for folder in folders if folder.is_dir() for file in folder.iterdir()):
        if "openblas" not in path.name:
            continue
        library = ctypes.CDLL(str(path))
        for suffix in _SUFFIXES:
            if hasattr(library, f"scipy_openblas_set_num_threads{suffix}"):
                return library, suffix
    return None
