"""The command line as a process among others: streams broken or closed, bytes that are no text, an early Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import edge
from runtimes.scripted import write_bundle

ROOT = Path(edge.__file__).parents[1]
ANSWER = "Paris, of course."
C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    folders = {"DSEDGE_HOME": str(tmp_path / "home"), "DSEDGE_CACHE": str(tmp_path / "cache")}
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    return {**kept, **folders, "PYTHONPATH": str(ROOT)}


@pytest.fixture
def bundle(tmp_path: Path) -> str:
    return str(write_bundle(tmp_path / "demo.dsedge", [ANSWER]).path)


def dsedge(
    *words: str | bytes, environment: dict[str, str], streams: str = "", stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """Run the command in a shell, with redirections in the shell's own words."""
    line = ["/bin/sh", "-c", f'exec "$@" {streams}', "sh", sys.executable, "-m", "edge", *words]
    return subprocess.run(line, env=environment, input=stdin, capture_output=True, check=False)


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "words",
    [
        ["run", "BUNDLE", "hi", "--runtime", "scripted"],
        ["run", "BUNDLE", "hi", "--runtime", "scripted", "--json", "--stop", "x"],
        ["inspect", "BUNDLE"],
        ["list"],
        ["run", "--help"],
        ["--version"],
    ],
    ids=" ".join,
)
def test_a_stdout_that_takes_nothing_is_one_line_and_exit_2(
    words: list[str], unbuffered: str, bundle: str, environment: dict[str, str]
) -> None:
    named = [bundle if word == "BUNDLE" else word for word in words]
    done = dsedge(*named, environment={**environment, "PYTHONUNBUFFERED": unbuffered}, streams="> /dev/full")
    assert done.stderr == b"dsedge: stdout cannot be written: No space left on device; the output is not whole\n"
    assert done.returncode == 2


def test_an_answer_longer_than_the_buffer_of_a_full_stdout(tmp_path: Path, environment: dict[str, str]) -> None:
    long = str(write_bundle(tmp_path / "long.dsedge", [" ".join(map(str, range(2000)))], context=10_000).path)
    words = ["run", long, "hi", "--runtime", "scripted", "--json", "--context", "10000"]
    done = dsedge(*words, environment=environment, streams="> /dev/full")
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert b"stdout cannot be written" in done.stderr


def test_a_stderr_that_takes_nothing_leaves_the_exit_code(bundle: str, environment: dict[str, str]) -> None:
    done = dsedge("run", "no-such-model", "hi", environment=environment, streams="2> /dev/full")
    assert (done.returncode, done.stdout) == (2, b"")


def test_streams_that_the_shell_has_closed_are_empty_and_lead_nowhere(bundle: str, environment: dict[str, str]) -> None:
    words = ["run", bundle, "--runtime", "scripted"]
    done = dsedge(*words, "hi", environment=environment, streams=">&-")
    assert (done.returncode, done.stderr) == (0, b"")
    done = dsedge(*words, "hi", "--stats", environment=environment, streams="2>&-")
    assert (done.returncode, done.stdout) == (0, ANSWER.encode() + b"\n")
    done = dsedge(*words, "hi", environment=environment, streams="<&- >&- 2>&-")
    assert done.returncode == 0
    done = dsedge(*words, environment=environment, streams="<&-")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"dsedge: the prompt is empty; give it as an argument or on stdin\n"


def test_a_stdin_that_cannot_be_read_is_one_line_and_exit_2(bundle: str, environment: dict[str, str]) -> None:
    done = dsedge("run", bundle, "-", "--runtime", "scripted", environment=environment, streams="0> /dev/null")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"dsedge: stdin cannot be read: Bad file descriptor\n"


@pytest.mark.parametrize(("raw", "count"), [(True, 12), (False, 5)])
def test_a_raw_text_on_stdin_stays_byte_for_byte(
    raw: bool, count: int, bundle: str, environment: dict[str, str]
) -> None:
    """Spaces, both kinds of line end and all. The template adds three tokens to what is left without them."""
    words = ["run", bundle, "--runtime", "scripted", "--stats", *(["--raw"] if raw else [])]
    done = dsedge(*words, environment=environment, stdin=b"\n hi  \r\n\t \r\n")
    assert f"({count} tokens, 0 cached)".encode() in done.stderr
    assert dsedge(*words, environment=environment, stdin=b" ").returncode == (0 if raw else 2)
    assert dsedge(*words, environment=environment).returncode == 2


def test_bytes_that_are_no_text_are_refused_with_their_place(bundle: str, environment: dict[str, str]) -> None:
    words = ["run", bundle, "--runtime", "scripted"]
    done = dsedge(*words, b"ab\xff", environment=environment)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"dsedge: the content of message 0 is not valid Unicode: character 3 is half of a ")
    done = dsedge(*words, "--raw", b"ab\xff", environment=environment)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"dsedge: the text is not valid Unicode: character 3 is half of a surrogate pair")


def test_utf8_on_the_command_line_is_understood_in_the_c_locale(bundle: str, environment: dict[str, str]) -> None:
    words = ["run", bundle, "--runtime", "scripted", "--stats"]
    prompt = "Écris é".encode()
    done = dsedge(*words, "--raw", prompt, environment={**environment, **C_LOCALE})
    assert (done.returncode, done.stdout) == (0, ANSWER.encode() + b"\n")
    assert f"({len(prompt)} tokens, 0 cached)".encode() in done.stderr
    done = dsedge(*words, "--system", "é", "--stop", "ü", prompt, environment={**environment, **C_LOCALE})
    assert f"({2 + len(prompt) + 5} tokens, 0 cached)".encode() in done.stderr


@pytest.mark.parametrize("prompt", ["What is x", "What is 1/2"])
def test_a_forgotten_model_is_said_before_a_prompt_is_missed(prompt: str, environment: dict[str, str]) -> None:
    done = dsedge("run", prompt, environment=environment)
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)
    assert prompt.encode() in done.stderr
    assert done.stderr.endswith(b"; MODEL comes before the prompt: dsedge run smollm2-135m-instruct PROMPT\n")
    assert b"catalogue" not in done.stderr  # a list that no prompt is in would hide the hint


@pytest.mark.parametrize("module", ["typer", "edge.cli", "edge.commands.run"])
def test_u2_ctrl_c_while_the_command_is_still_being_imported(
    module: str, environment: dict[str, str], tmp_path: Path
) -> None:
    """A hook on imports interrupts the process in the middle of one, as a hasty person does."""
    hook = (
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    (tmp_path / "sitecustomize.py").write_text(hook)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = dsedge("run", "no-such-model", environment={**environment, "PYTHONPATH": path})
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_u2_an_interrupt_that_the_parent_ignores_stays_ignored(environment: dict[str, str], tmp_path: Path) -> None:
    """As for a command that a shell has put in the background."""
    program = (
        "import os, runpy, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "sys.argv = ['dsedge', '--version']\n"
        "sys.addaudithook(lambda event, found: event == 'import' and found[0] == 'typer' and os.kill(os.getpid(), 2))\n"
        "runpy.run_module('edge', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=False)
    assert signal.SIGINT == 2
    assert (done.returncode, done.stderr) == (0, b"")
