"""What CMake makes of a machine that lacks something: the install goes on, and says what was missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.skipif(
    sys.platform == "win32"
    or not shutil.which("cmake")
    or not shutil.which("c++")
    or not (ROOT / "CMakeLists.txt").exists(),
    reason="needs CMake, a compiler and the sources",
)


def configure(build: Path, *options: str, cxx: str = "c++") -> str:
    """What a configuration prints, in one line. Fails unless it succeeds."""
    done = subprocess.run(
        ["cmake", "-S", ROOT, "-B", build, f"-DPython_EXECUTABLE={sys.executable}", *options],
        capture_output=True, text=True, check=False, env={**os.environ, "CXX": cxx},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return re.sub(r"\s+", " ", done.stdout + done.stderr)


def compiler(folder: Path, script: str) -> str:
    """A compiler that runs `script` on each of its arguments before it hands them to the real one."""
    path = folder / "compiler"
    path.write_text(
        f'#!/bin/bash\nargs=()\nfor arg in "$@"; do\n{script}\nargs+=("$arg")\ndone\nexec c++ "${{args[@]}}"\n'
    )
    path.chmod(0o755)
    return str(path)


def missing(build: Path) -> str:
    """What the install would tell `dsedge doctor`."""
    note: dict[str, str] = {}
    exec((build / "_not_built.py").read_text(), note)
    return note["MISSING"]


def test_the_note_is_python_whatever_the_path(tmp_path: Path) -> None:
    configure(tmp_path / "build", cxx=r'C:\Users\"me"\cl.exe')
    assert missing(tmp_path / "build") == "a C++ compiler that works (CXX is C:/Users//me//cl.exe)"


@pytest.mark.parametrize("found", ["nowhere", "broken"])
def test_no_compiler_that_works(tmp_path: Path, found: str) -> None:
    cxx = compiler(tmp_path, "exit 1") if found == "broken" else str(tmp_path / "nowhere")
    said = configure(tmp_path / "build", cxx=cxx)
    assert "ONNX Runtime serves instead. Missing: a C++ compiler that works" in said
    assert missing(tmp_path / "build") == f"a C++ compiler that works (CXX is {cxx})"


def test_a_compiler_without_cpp20(tmp_path: Path) -> None:
    cxx = compiler(tmp_path, '[[ $arg == -std=* ]] && arg="-std=c++17"')
    said = configure(tmp_path / "build", cxx=cxx)
    assert "ONNX Runtime serves instead. Missing: a compiler with C++20, its atomic waiting" in said
    assert "C++20" in missing(tmp_path / "build")


def test_no_headers_of_python(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for place in ("empty", "nowhere"):
        said = configure(tmp_path / place / "build", f"-DPython_INCLUDE_DIR={tmp_path / place}")
        assert "ONNX Runtime serves instead. Missing: the headers of Python" in said
        assert "python3-dev" in missing(tmp_path / place / "build")


def test_an_instruction_set_that_the_compiler_lacks_is_left_out(tmp_path: Path) -> None:
    cxx = compiler(tmp_path, '[[ $arg == -mavxvnni || $arg == -march=* ]] && { echo "unknown $arg" >&2; exit 1; }')
    every = configure(tmp_path / "all", "-DDSEDGE_PYTHON=OFF")
    fewer = configure(tmp_path / "some", "-DDSEDGE_PYTHON=OFF", cxx=cxx)
    sets = re.compile(r"kernel sets: (\S+)")
    found = [match.group(1).split(";") for match in map(sets.search, (every, fewer)) if match]
    assert len(found) == 2
    assert found[0][0] == "portable"
    assert len(found[0]) > 1, "the processor of this machine has a kernel set of its own"
    assert found[1] == [name for name in found[0] if name not in ("avxvnni", "neon", "i8mm")]
    assert "Missing" not in fewer
