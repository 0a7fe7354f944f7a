"""The command line as a separate process, in pipes and on pseudo-terminals: U1 and U2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import termios
from pathlib import Path

import pexpect
import pytest

import edge
from runtimes.scripted import write_bundle
from tests.edge.scripted import with_template

ROOT = Path(edge.__file__).parents[1]
COMMAND = [sys.executable, "-m", "edge.cli"]
ESC = "\x1b"
WIDE = "日本語の答え、幅は二。"
SLOW = "one two three four five six seven eight nine ten " * 8


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A plain environment, with variables that tempt programs to write escape codes into pipes."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if key not in ("NO_COLOR", "COLUMNS", "LINES", "PYTHONUNBUFFERED")
    }
    folders = {"DSEDGE_HOME": str(tmp_path / "home"), "DSEDGE_CACHE": str(tmp_path / "cache")}
    tempting = {"TERM": "xterm-256color", "FORCE_COLOR": "1", "CLICOLOR_FORCE": "1", "TTY_COMPATIBLE": "1"}
    return {**kept, **folders, **tempting, "PYTHONPATH": str(ROOT), "PROMPT_TOOLKIT_NO_CPR": "1"}


@pytest.fixture
def bundle(tmp_path: Path) -> str:
    return str(write_bundle(tmp_path / "demo.dsedge", [WIDE]).path)


@pytest.fixture
def slow(tmp_path: Path) -> str:
    """Answers that take about eight seconds if nobody stops them, and one that takes none."""
    return str(write_bundle(tmp_path / "slow.dsedge", [SLOW, "quick"], delay_s=0.02).path)


def spawn(arguments: list[str], environment: dict[str, str], *, columns: int = 80) -> pexpect.spawn:
    command, *rest = COMMAND
    return pexpect.spawn(
        command, [*rest, *arguments], env=environment, dimensions=(24, columns), encoding="utf-8", timeout=20
    )


def chat(bundle: str, environment: dict[str, str]) -> pexpect.spawn:
    child = spawn(["run", bundle, "--runtime", "scripted"], environment)
    child.expect(">>>")
    return child


def code(child: pexpect.spawn) -> int:
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus is not None, f"killed by signal {child.signalstatus}"
    return int(child.exitstatus)


PIPED = [
    ["run", "BUNDLE", "hi", "--runtime", "scripted", "--stats"],
    ["run", "BUNDLE", "hi", "--runtime", "nothing"],
    ["run", "--help"],
    ["run", "--frobnicate"],
    ["inspect", "BUNDLE"],
    ["list"],
    ["doctor"],
    ["bench", "BUNDLE", "--runtime", "scripted", "--prompt", "4", "--new", "2", "--runs", "1"],
]


@pytest.mark.parametrize("arguments", PIPED, ids=" ".join)
def test_u1_no_escape_byte_in_a_pipe(arguments: list[str], bundle: str, environment: dict[str, str]) -> None:
    words = [bundle if word == "BUNDLE" else word for word in arguments]
    done = subprocess.run(
        [*COMMAND, *words], env=environment, capture_output=True, stdin=subprocess.DEVNULL, check=False
    )
    assert done.stdout + done.stderr
    assert ESC.encode() not in done.stdout + done.stderr
    assert b"\r" not in done.stdout + done.stderr


def test_u1_one_stream_in_a_pipe_and_one_on_a_terminal(
    bundle: str, environment: dict[str, str], tmp_path: Path
) -> None:
    target = tmp_path / "out.txt"
    words = " ".join([*COMMAND, "run", bundle, "hi", "--runtime", "scripted", "--stats", ">", str(target)])
    child = pexpect.spawn("/bin/sh", ["-c", words], env=environment, encoding="utf-8", timeout=20)
    child.expect("TTFT")
    assert code(child) == 0
    assert target.read_text(encoding="utf-8") == WIDE + "\n"


@pytest.mark.parametrize(
    "arguments", [["run", "BUNDLE", "hi", "--runtime", "scripted", "--stats"], ["inspect", "BUNDLE"]]
)
def test_u1_no_escape_byte_on_a_dumb_terminal(arguments: list[str], bundle: str, environment: dict[str, str]) -> None:
    words = [bundle if word == "BUNDLE" else word for word in arguments]
    child = spawn(words, {**environment, "TERM": "dumb"})
    assert code(child) == 0
    assert child.before
    assert ESC not in child.before


def test_u1_a_dumb_terminal_can_chat(bundle: str, environment: dict[str, str]) -> None:
    child = spawn(["run", bundle, "--runtime", "scripted"], {**environment, "TERM": "dumb"})
    child.logfile_read = transcript = _Transcript()
    child.expect(">>>")
    child.sendline("hi")
    child.expect_exact(WIDE)
    child.expect(">>>")
    child.sendeof()
    assert code(child) == 0
    assert ESC not in transcript.text


def test_u1_no_color_means_no_color(bundle: str, environment: dict[str, str]) -> None:
    child = spawn(["inspect", bundle], {**environment, "NO_COLOR": "1", "FORCE_COLOR": ""})
    assert code(child) == 0
    assert f"{ESC}[3" not in child.before


def test_u1_a_terminal_of_one_column_gets_the_whole_answer(bundle: str, environment: dict[str, str]) -> None:
    child = spawn(["run", bundle, "hi", "--runtime", "scripted"], environment, columns=1)
    assert code(child) == 0
    assert child.before.replace("\r\n", "\n") == WIDE + "\n"
    assert code(spawn(["inspect", bundle], environment, columns=1)) == 0


def test_u1_what_a_model_writes_cannot_drive_the_terminal(tmp_path: Path, environment: dict[str, str]) -> None:
    odd = str(write_bundle(tmp_path / "odd.dsedge", [f"a{ESC}]0;title\x07b\x9bc\td"]).path)
    child = spawn(["run", odd, "hi", "--runtime", "scripted"], environment)
    assert code(child) == 0
    assert child.before.startswith("a\\x1b]0;title\\x07b\\x9bc")


@pytest.fixture
def thinking(tmp_path: Path) -> str:
    template = "<|{{ messages[0].role }}|>{{ messages[0].content }}<|end|><|assistant|><think>\n"
    return str(with_template(write_bundle(tmp_path / "thinking.dsedge", ["hm</think>\n\nyes"]), template).path)


def test_u1_reasoning_is_on_stderr_dimmed_on_a_terminal_only(thinking: str, environment: dict[str, str]) -> None:
    words = ["run", thinking, "hi", "--runtime", "scripted"]
    piped = subprocess.run([*COMMAND, *words], env=environment, capture_output=True, check=True, text=True)
    assert (piped.stdout, piped.stderr) == ("yes\n", "hm\n\n")
    child = spawn(words, environment)
    assert code(child) == 0
    assert child.before.replace("\r", "") == f"{ESC}[2mhm{ESC}[22m\n\nyes\n"
    child = spawn(words, {**environment, "NO_COLOR": "1"})
    assert code(child) == 0
    assert child.before.replace("\r", "") == "hm\n\nyes\n"
    found = subprocess.run([*COMMAND, *words, "--json"], env=environment, capture_output=True, check=True, text=True)
    assert found.stderr == ""
    assert (json.loads(found.stdout)["reasoning"], json.loads(found.stdout)["text"]) == ("hm", "yes")


def test_u2_ctrl_c_stops_the_answer_and_keeps_the_chat(slow: str, environment: dict[str, str]) -> None:
    child = chat(slow, environment)
    child.sendline("first")
    child.expect_exact("one two three")
    child.sendintr()
    child.expect_exact("(stopped)")
    child.expect(">>>")
    child.sendline("second")
    child.expect_exact("quick")
    child.expect(">>>")
    child.sendline("/stats")
    child.expect(r"decode\s[\d.]+\stok/s\s+\(5\s+tokens\)")
    child.expect(">>>")
    child.sendline("/quit")
    assert code(child) == 0


def test_u2_a_stopped_answer_stays_in_the_conversation(slow: str, environment: dict[str, str], tmp_path: Path) -> None:
    saved = tmp_path / "chat.json"
    child = chat(slow, environment)
    child.sendline("first")
    child.expect_exact("one two three")
    child.sendintr()
    child.expect(">>>")
    child.sendline(f"/save {saved}")
    child.expect_exact("saved 2 messages")
    child.expect(">>>")
    child.sendeof()
    assert code(child) == 0
    messages = json.loads(saved.read_text())["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant"]
    assert messages[0]["content"] == "first"
    assert SLOW.startswith(messages[1]["content"])
    assert messages[1]["content"] != SLOW


def test_u2_ctrl_c_at_the_prompt_clears_the_line_and_twice_leaves(slow: str, environment: dict[str, str]) -> None:
    child = chat(slow, environment)
    child.send("half a line")
    child.sendintr()
    child.expect_exact("(Ctrl-C again or Ctrl-D leaves)")
    child.expect(">>>")
    child.sendline("/reset")
    child.expect_exact("starts anew")
    child.expect(">>>")
    child.sendintr()
    child.expect_exact("(Ctrl-C again or Ctrl-D leaves)")
    child.expect(">>>")
    child.sendintr()
    assert code(child) == 0


def test_keys_typed_during_an_answer_wait_for_the_next_line(slow: str, environment: dict[str, str]) -> None:
    child = chat(slow, environment)
    child.logfile_read = transcript = _Transcript()
    child.sendline("first")
    child.expect_exact("one two three")
    child.send("typed meanwhile\r")
    child.expect_exact("four five six")
    child.sendintr()
    child.expect_exact("quick")
    child.expect(">>>")
    child.sendline("/quit")
    assert code(child) == 0
    answer, _, after = transcript.text.partition("(stopped)")
    assert "typed" not in answer
    assert "typed" in after


def test_several_lines_are_one_message(slow: str, environment: dict[str, str], tmp_path: Path) -> None:
    saved = tmp_path / "chat.json"
    child = spawn(["run", slow, "--runtime", "scripted", "--max-tokens", "3"], environment)
    for keys, answer in (("a\x1b\rb\r", "one"), ('"""/c\rd"""\r', "qui")):
        child.expect(">>>")
        child.send(keys)
        child.expect_exact(answer)
    child.expect(">>>")
    child.sendline(f"/save {saved}")
    child.expect_exact("saved 4 messages")
    child.expect(">>>")
    child.sendeof()
    assert code(child) == 0
    messages = json.loads(saved.read_text())["messages"]
    assert [message["content"] for message in messages[::2]] == ["a\nb", "/c\nd"]


def test_several_lines_in_quotes_on_a_dumb_terminal(slow: str, environment: dict[str, str], tmp_path: Path) -> None:
    saved = tmp_path / "chat.json"
    child = spawn(
        ["run", slow, "--runtime", "scripted", "--max-tokens", "3"], {**environment, "TERM": "dumb", "LC_ALL": "C"}
    )
    child.expect(">>> ")
    child.sendline('"""é')
    child.expect_exact("... ")
    child.sendline('b"""')
    child.expect(">>> ")
    child.sendline(f"/save {saved}")
    child.expect_exact("saved 2 messages")
    child.expect(">>> ")
    child.sendeof()
    assert code(child) == 0
    assert json.loads(saved.read_text())["messages"][0]["content"] == "é\nb"


def test_tab_completes_commands_and_their_values(slow: str, environment: dict[str, str]) -> None:
    child = chat(slow, environment)
    child.send("/hel\t")
    child.expect_exact("p")
    child.send("\r")
    child.expect_exact("this list")
    child.expect(">>>")
    child.send("/thinking of\t")
    child.expect_exact("f")
    child.send("\r")
    child.expect_exact("cannot turn reasoning on or off")
    child.expect(">>>")
    child.send("/bye\r")
    assert code(child) == 0


def test_a_long_prompt_shows_a_sign_of_life_on_a_terminal_alone(tmp_path: Path, environment: dict[str, str]) -> None:
    late = str(write_bundle(tmp_path / "late.dsedge", ["yes"], delay_s=2.5).path)
    words = ["run", late, "hi", "--runtime", "scripted", "--max-tokens", "1"]
    child = spawn(words, environment)
    child.expect_exact("reading the prompt (1 s)")
    child.expect_exact(f"\r{ESC}[K")
    assert code(child) == 0
    done = subprocess.run(
        [*COMMAND, *words], env=environment, capture_output=True, stdin=subprocess.DEVNULL, check=True
    )
    assert (done.stdout, done.stderr) == (b"y\n", b"")


@pytest.mark.parametrize("columns", [40, 80])
def test_words_are_not_broken_at_the_end_of_a_line(slow: str, environment: dict[str, str], columns: int) -> None:
    child = spawn(["run", slow, "hi", "--runtime", "scripted", "--max-tokens", "200"], environment, columns=columns)
    assert code(child) == 0
    lines = child.before.replace("\r", "").split("\n")
    assert len(lines) > 200 // columns
    assert set(" ".join(lines[:-2]).split()) <= set(SLOW.split())


def test_words_of_an_error_are_not_broken_either(environment: dict[str, str]) -> None:
    child = spawn(["run", "nowhere.dsedge", "hi"], environment, columns=40)
    assert code(child) == 2
    lines = child.before.replace("\r", "").strip().split("\n")
    assert len(lines) > 1
    assert " ".join(lines).startswith("dsedge: nowhere.dsedge: no bundle there; `dsedge export SOURCE -o")


def test_u2_a_single_answer_stopped_by_ctrl_c_is_exit_130(slow: str, environment: dict[str, str]) -> None:
    child = spawn(["run", slow, "hi", "--runtime", "scripted"], environment)
    child.expect_exact("one two")
    child.sendintr()
    assert code(child) == 130
    assert "Traceback" not in child.before


def test_a_chat_with_options_for_one_answer_is_refused_before_loading(environment: dict[str, str]) -> None:
    child = spawn(["run", "no-such-model", "--json"], environment)
    child.expect_exact("--raw and --json are for one answer")
    assert code(child) == 2


def test_u2_the_terminal_is_as_it_was(slow: str, environment: dict[str, str]) -> None:
    # A shell keeps the pseudo-terminal open after the chat, so that its settings can still be read.
    words = " ".join([*COMMAND, "run", slow, "--runtime", "scripted"])
    child = pexpect.spawn(
        "/bin/sh", ["-c", f"trap : INT; {words}; echo left=$?; read line"], env=environment, encoding="utf-8"
    )
    before = termios.tcgetattr(child.child_fd)
    child.expect(">>>")
    child.sendline("first")
    child.expect_exact("one two three")
    child.sendintr()
    child.expect(">>>")
    child.sendeof()
    child.expect_exact("left=0")
    assert termios.tcgetattr(child.child_fd) == before
    child.sendline("")
    assert code(child) == 0


def test_a_reader_that_goes_away_ends_the_command_quietly(slow: str, environment: dict[str, str]) -> None:
    with subprocess.Popen(
        [*COMMAND, "run", slow, "hi", "--runtime", "scripted"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(3) == b"one"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(20) == 141


def test_u1_a_chat_whose_stdout_is_a_file_puts_only_the_answers_there(
    bundle: str, environment: dict[str, str], tmp_path: Path
) -> None:
    target = tmp_path / "out.txt"
    words = " ".join([*COMMAND, "run", bundle, "--runtime", "scripted", ">", str(target)])
    child = pexpect.spawn("/bin/sh", ["-c", words], env=environment, encoding="utf-8", timeout=20)
    child.expect(">>>")
    child.sendline("hi")
    child.expect(">>>")
    child.sendline("/quit")
    assert code(child) == 0
    assert target.read_text(encoding="utf-8") == WIDE + "\n"


def test_u1_an_output_that_cannot_show_a_character_gets_a_question_mark(
    bundle: str, environment: dict[str, str]
) -> None:
    done = subprocess.run(
        [*COMMAND, "run", bundle, "hi", "--runtime", "scripted"],
        env={**environment, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b"?" * len(WIDE) + b"\n")


class _Transcript:
    """Everything that a child wrote."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        """pexpect calls it after each write; there is nothing to do."""
