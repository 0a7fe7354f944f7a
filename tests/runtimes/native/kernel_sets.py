"""The kernel sets that this processor runs, portable first. Modules that import this are skipped without the engine."""

from __future__ import annotations

import pytest

_native = pytest.importorskip("runtimes.native._native", reason="the native engine was not built here")
NAMES = ("portable", "avx2", "avxvnni", "avx512", "avx512bf16", "neon", "i8mm")
SETS = [name for name in NAMES if _native.find_kernels(name)]
