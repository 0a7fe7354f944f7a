"""Limits of the process: its end while a thread computes, and threads or memory that the system does not give."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import edge
from edge.bundle import Bundle
from edge.runtime import support
from tests.exporters.tiny import tiny_llama

ROOT = Path(edge.__file__).parents[1]
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="limits and signals of POSIX")
START = """
import os, signal, sys, threading, time
import edge
from edge.options import GenerateOptions, RuntimeOptions
path, options = sys.argv[1], RuntimeOptions(runtime=sys.argv[2], threads=2)
"""
# A forward of 1,500 tokens is nearly all compiled code, so that is where the thread is when the end comes.
COMPUTE = """
pipeline, begun = edge.load(path, options), threading.Event()
def compute():
    while True:
        for _ in pipeline.tokens([5 + n % 200 for n in range(1500)], GenerateOptions(max_tokens=1)):
            begun.set()
        pipeline.reset()
thread = threading.Thread(target=compute, daemon=True)
thread.start()
begun.wait()
"""
ENDS = {
    "daemon thread": COMPUTE,
    "sys.exit in a thread": COMPUTE + "other = threading.Thread(target=sys.exit); other.start(); other.join()",
    "sys.exit by SIGTERM": "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))"
    + COMPUTE
    + "os.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(60)",
    "an error": COMPUTE + "sys.stderr = open(os.devnull, 'w'); raise SystemExit(0) from ZeroDivisionError()",
    "unread stream": "pipeline = edge.load(path, options); stream = pipeline.stream('abc', raw=True); next(stream)",
    "a thread that opens": """
def opening():
    while True:
        edge.load(path, options).close()
edge.load(path, options).close()
threading.Thread(target=opening, daemon=True).start()
time.sleep(0.1)
""",
}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("limits")
    source = tiny_llama(folder / "source", max_position_embeddings=2048)
    return edge.export(source, folder / "tiny.dsedge")


def run(code: str, bundle: Bundle, runtime: str, limit: Callable[[], None] | None = None) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a fresh process."""
    if not support(runtime).devices:
        pytest.skip(f"{runtime} is not usable here")
    done = subprocess.run(
        [sys.executable, "-c", START + code, str(bundle.path), runtime],
        cwd=ROOT, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL, check=False,
        preexec_fn=limit, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("runtime", ["native", "onnx"])
@pytest.mark.parametrize("end", ENDS)
def test_n7_an_interpreter_ends_quietly_while_a_thread_computes(end: str, runtime: str, bundle: Bundle) -> None:
    assert run(ENDS[end], bundle, runtime) == (0, "", "")


@pytest.mark.parametrize("runtime", ["native", "onnx"])
def test_n7_sigterm_ends_the_process_as_the_system_does(runtime: str, bundle: Bundle) -> None:
    assert run(COMPUTE + "os.kill(os.getpid(), signal.SIGTERM)", bundle, runtime) == (-signal.SIGTERM, "", "")


def test_n7_a_forked_process_ends_without_what_its_parent_opened(bundle: Bundle) -> None:
    """The child has a copy of locks that the parent's threads hold for ever."""
    forked = "import warnings; warnings.simplefilter('ignore'); child = os.fork()\n"
    code = COMPUTE + forked + "if child: sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    assert run(code, bundle, "native") == (0, "", "")


ANSWER = """
with edge.load(path, options) as pipeline:
    print([event.id for event in pipeline.tokens([5, 6, 7], GenerateOptions(max_tokens=4))])
"""


@pytest.mark.parametrize("runtime", ["native", "onnx"])
@pytest.mark.skipif(sys.platform != "linux", reason="limits as Linux has them")
def test_n8_where_no_thread_starts_one_computes(runtime: str, bundle: Bundle) -> None:
    """A thread's stack is as large as the limit says, and twice the address space is more than there is."""
    import resource

    def no_threads() -> None:
        resource.setrlimit(resource.RLIMIT_STACK, (64 << 30, resource.getrlimit(resource.RLIMIT_STACK)[1]))
        resource.setrlimit(resource.RLIMIT_AS, (32 << 30, 32 << 30))

    check = "import _thread\ntry: _thread.start_new_thread(time.sleep, (0,)); print('a thread')\n"
    check += "except RuntimeError: pass\n"
    code, out, err = run(check + ANSWER, bundle, runtime, no_threads)
    assert (code, out, err) == run(ANSWER, bundle, runtime)
    assert code == 0


@pytest.mark.parametrize("runtime", ["native", "onnx"])
@pytest.mark.skipif(sys.platform != "linux", reason="limits as Linux has them")
def test_n8_too_little_address_space_is_said_in_one_line(runtime: str, bundle: Bundle) -> None:
    code = """
import numpy, tokenizers, jinja2, edge.pipeline, edge.runtime, resource
edge.runtime.support("onnx")
if sys.argv[2] == "onnx": import onnxruntime, runtimes.onnx_runtime
else: import runtimes.native, runtimes.native._native
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (24 << 20),) * 2)
try:
    edge.load(path, RuntimeOptions(runtime=sys.argv[2], threads=1, context=2048, sequences=4000))
except edge.UserError as error:
    print(error)
"""
    found, out, err = run(code, bundle, runtime)
    assert (found, err, out.count("\n")) == (0, "", 1)
    assert "memory for the model" in out
