"""The command line in one process: what goes to stdout, what to stderr, and with which exit code."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import edge
from edge import runtime, store
from edge.cli import main
from edge.commands import terminal
from edge.download import Fetched
from edge.pipeline import Pipeline
from exporters.bundle_folder import BundleFolder
from runtimes.scripted import write_bundle

ROOT = Path(edge.__file__).parents[1]
ANSWER = "Paris, of course."


@dataclass(frozen=True, slots=True)
class Outcome:
    code: int
    out: str
    err: str


Invoke = Callable[..., Outcome]


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSEDGE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DSEDGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Invoke:
    def call(*arguments: str | Path, stdin: str | bytes = "") -> Outcome:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
        code = main([str(argument) for argument in arguments])
        return Outcome(code, *capsys.readouterr())

    return call


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "demo.dsedge", [ANSWER]).path


def run(bundle: Path, *options: str | Path) -> tuple[str | Path, ...]:
    return ("run", bundle, "--runtime", "scripted", *options)


def test_the_answer_and_nothing_else_is_on_stdout(invoke: Invoke, bundle: Path) -> None:
    assert invoke(*run(bundle, "Capital of France?")) == Outcome(0, ANSWER + "\n", "")


def test_the_prompt_may_come_from_stdin(invoke: Invoke, bundle: Path) -> None:
    assert invoke(*run(bundle), stdin="Capital?\n").out == ANSWER + "\n"
    assert invoke(*run(bundle, "-"), stdin="Capital?\n").out == ANSWER + "\n"


@pytest.mark.parametrize(("words", "stdin", "sent"), [
    (("say it",), "diff --git\n", "say it\n\ndiff --git"),
    (("say it",), "", "say it"),
    (("say it",), " \n", "say it"),
    ((), "diff\n", "diff"),
    (("-",), "diff\n", "diff"),
    (("say it", "--raw"), " diff\n", "say it\n\n diff\n"),
])  # fmt: skip
def test_n12_the_prompt_and_what_comes_on_stdin_are_both_sent(
    invoke: Invoke, bundle: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], stdin: str, sent: str
) -> None:
    seen: list[Any] = []
    encode = Pipeline._encode
    monkeypatch.setattr(
        Pipeline, "_encode", lambda self, prompt, *a, **k: seen.append(prompt) or encode(self, prompt, *a, **k)
    )
    assert invoke(*run(bundle, *words), stdin=stdin).code == 0
    assert seen == [sent if "--raw" in words else [{"role": "user", "content": sent}]]


@pytest.mark.skipif(sys.platform == "win32", reason="descriptors of POSIX")
def test_n12_a_stdin_that_cannot_be_read_leaves_the_prompt(bundle: Path) -> None:
    """Some services start a program with /dev/null open for writing alone as its stdin, or with none."""
    prefix = ["/bin/sh", "-c", 'exec "$@" 0>/dev/null', "sh", sys.executable, "-m", "edge"]
    for words, code, out in ((("hi",), 0, ANSWER + "\n"), ((), 2, "")):
        done = subprocess.run(
            [*prefix, *map(str, run(bundle, *words))], check=False, cwd=ROOT, capture_output=True, text=True
        )
        assert (done.returncode, done.stdout) == (code, out)
        assert "stdin cannot be read: Bad file descriptor" in done.stderr
        assert ("only the prompt is sent" in done.stderr) == bool(words)


def test_n12_a_closed_stdin_has_no_text(invoke: Invoke, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.TextIOWrapper(io.BytesIO())
    closed.close()
    monkeypatch.setattr(sys, "stdin", closed)
    assert main([str(word) for word in run(bundle, "hi")]) == 0
    sys.stdin.close()  # what main has put in its place


def test_n22_json_loses_no_character_whatever_the_console(invoke: Invoke, tmp_path: Path) -> None:
    odd = write_bundle(tmp_path / "odd.dsedge", ["Größe 日本 €"]).path
    command = [sys.executable, "-m", "edge", *map(str, run(odd, "hi", "--json"))]
    for encoding in ("ascii", "cp1252", "latin-1", "utf-8"):
        environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, capture_output=True, env=environment, check=True, stdin=subprocess.DEVNULL)
        assert json.loads(done.stdout.decode("utf-8"))["text"] == "Größe 日本 €"
        assert done.stdout.isascii() == (encoding != "utf-8")


def test_stats_are_on_stderr(invoke: Invoke, bundle: Path) -> None:
    done = invoke(*run(bundle, "hi", "--stats", "--seed", "7"))
    assert done.out == ANSWER + "\n"
    for part in ("TTFT ", "prefill ", f"({len(ANSWER)} tokens)", "peak memory ", "KV 22/4096", "dropped 0", "seed 7"):
        assert part in done.err


def test_json_holds_the_result(invoke: Invoke, bundle: Path) -> None:
    found = json.loads(invoke(*run(bundle, "hi", "--json", "--stop", "of", "--stop", "x")).out)
    assert (found["text"], found["finish_reason"], found["stop"]) == ("Paris, ", "stop", "of")
    assert found["prompt_tokens"] == 5  # the user tag, two letters, the end tag and the assistant tag
    assert found["runtime"] == "scripted"


def test_max_tokens_cuts_the_answer(invoke: Invoke, bundle: Path) -> None:
    assert invoke(*run(bundle, "hi", "--max-tokens", "5")) == Outcome(0, "Paris\n", "")


def test_a_full_context_is_said_aloud(invoke: Invoke, bundle: Path) -> None:
    done = invoke(*run(bundle, "hi", "--raw", "--context", "8"))
    assert done.code == 0
    assert done.out == ANSWER[:7] + "\n"
    assert "the answer was cut: the context is full" in done.err


def test_k12_dropped_tokens_are_said_aloud(invoke: Invoke, bundle: Path) -> None:
    done = invoke(*run(bundle, "hi", "--raw", "--context", "8", "--policy", "sliding"))
    assert done.out == ANSWER + "\n"
    assert "sliding has dropped 11 tokens so far" in done.err


def test_logit_bias_reaches_the_sampler(invoke: Invoke, bundle: Path) -> None:
    options = ("--logit-bias", f"{ord('Z')}=100", "--logit-bias", "1=-5.5", "--max-tokens", "2")
    assert invoke(*run(bundle, "hi", *options)).out == "ZZ\n"


def test_control_text_of_the_model_reaches_a_pipe_unchanged(invoke: Invoke, tmp_path: Path) -> None:
    odd = write_bundle(tmp_path / "odd.dsedge", ["a\x1b[31mb\n"]).path
    assert invoke(*run(odd, "hi")).out == "a\x1b[31mb\n"


BAD = [
    (("run", "nope", "hi"), "no model 'nope'"),
    (("run", "nope.dsedge", "hi"), "nope.dsedge: no bundle there"),
    (("run", "BUNDLE", "hi", "--runtime", "gpu"), "unknown runtime 'gpu'; known are auto, "),
    (("run", "BUNDLE", "hi", "--runtime", "scripted", "--device", "cuda"), "device 'cuda' is not usable"),
    (("run", "BUNDLE", "hi", "--temperature", "-1"), "temperature is -1.0; it must be between 0"),
    (("run", "BUNDLE", "hi", "--top-p", "1.5"), "top_p is 1.5; it must be between 0 and 1"),
    (("run", "BUNDLE", "hi", "--policy", "wrap"), "policy is 'wrap'; it must be one of error, sliding, evict, spill"),
    (("run", "BUNDLE", "hi", "--context", "9999999"), "context of 9999999"),
    (("run", "BUNDLE", "hi", "--logit-bias", "x=1"), "logit bias 'x=1' is not ID=VALUE"),
    (("run", "BUNDLE", "hi", "--raw", "--system", "s"), "--raw uses no chat template"),
    (("run", "BUNDLE", "--runtime", "scripted"), "the prompt is empty"),
    (("run", "BUNDLE", "hi", "--max-tokens", "many"), "--max-tokens"),
    (("run", "BUNDLE", "hi", "there"), "unexpected extra argument"),
    (("run", "--frobnicate"), "--frobnicate"),
    (("frobnicate",), "frobnicate"),
    (("export", "nowhere"), "-o OUT.dsedge"),
    (("export", "nowhere", "-o", "x"), "x: a bundle's folder ends in .dsedge"),
    (("export", "nowhere", "--name", "../x"), "cannot name a model"),
    (("export", "nowhere", "-o", "x.dsedge"), "nowhere"),
    (("inspect", "absent"), "no model 'absent'"),
    (("verify", "absent.dsedge"), "no bundle there"),
    (("bench", "BUNDLE", "--new", "1"), "new is 1; it must be at least 2"),
    (("pull", "gpt-9"), "the catalogue has no model 'gpt-9'"),
    (("rm", "gpt-9"), "the store has no model 'gpt-9'"),
    (("pull", "x", "--catalog", "no.toml"), "no.toml: no such catalogue"),
    (("import", "nowhere"), "nowhere: no bundle and no checkpoint there"),
    (("import", "BUNDLE", "--name", "a/b"), "cannot name a model"),
    (("export",), "a SOURCE, or --variants"),
    (("export", "x", "-o", "y.dsedge", "--license", "MIT"), "--license is for the catalogue"),
    (("export", "x", "--variants", "7b=y", "-o", "out"), "leave out SOURCE"),
    (("export", "--variants", "7b=y"), "-o names the release's folder"),
    (("export", "--variants", "7b=y", "-o", "out.dsedge"), "-o names the release's folder"),
    (("export", "--variants", "model.gguf", "-o", "out"), "variant 'model.gguf' is not RECIPE=SOURCE"),
    (("export", "--variants", "7b=a,7b=b", "-o", "out"), "variant 7b is named twice"),
    (("export", "--variants", "9b=nowhere", "-o", "out"), "nowhere"),
    (("completion", "tcsh"), "no completion for the shell 'tcsh'; there is one for bash, zsh"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=lambda item: " ".join(item) if type(item) is tuple else "")
def test_a_users_mistake_is_one_line_and_exit_2(
    invoke: Invoke, bundle: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = invoke(*(bundle if word == "BUNDLE" else word for word in arguments))
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("dsedge: ")
    assert done.err.count("\n") == 1
    assert message in done.err


def test_a_damaged_bundle_is_exit_2(invoke: Invoke, bundle: Path) -> None:
    with open(bundle / "weights.safetensors", "r+b") as file:
        file.seek(-1, io.SEEK_END)
        file.write(b"!")
    done = invoke(*run(bundle, "hi"))
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "weights.safetensors: its SHA-256 is not the manifest's" in done.err


def test_a_prompt_that_does_not_fit_names_both_numbers(invoke: Invoke, bundle: Path) -> None:
    done = invoke(*run(bundle, "x" * 20, "--raw", "--context", "10"))
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "20 tokens and the context holds 10" in done.err


def test_logits_that_are_not_numbers_are_exit_1(invoke: Invoke, tmp_path: Path) -> None:
    broken = write_bundle(tmp_path / "nan.dsedge", [ANSWER], fail_at=3).path
    done = invoke(*run(broken, "hi"))
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "not finite" in done.err


def test_a_bug_is_one_line_and_exit_1_unless_debug_asks(
    invoke: Invoke, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(*_: object, **__: object) -> None:
        raise ZeroDivisionError("something\nodd")

    monkeypatch.setattr("edge.pipeline.open_runtime", explode)
    done = invoke(*run(bundle, "hi"))
    assert (done.code, done.out) == (1, "")
    assert (
        done.err
        == "dsedge: unexpected ZeroDivisionError: something odd; this is a bug: --debug shows where it happened\n"
    )
    done = invoke(*run(bundle, "hi", "--debug"))
    assert done.code == 1
    assert "Traceback" in done.err
    assert "in explode" in done.err


def test_debug_after_a_double_dash_is_a_prompt(invoke: Invoke, bundle: Path) -> None:
    found = json.loads(invoke(*run(bundle, "--raw", "--json", "--", "--debug")).out)
    assert found["prompt_tokens"] == len("--debug")


def test_help_and_version_are_exit_0(invoke: Invoke) -> None:
    helped = invoke("--help")
    assert helped.code == 0
    for name in ("run", "export", "inspect", "verify", "doctor", "bench", "list", "pull", "import", "rm", "completion"):
        assert f"  {name} " in helped.out
    assert "..." not in helped.out.partition("Commands:")[2]  # nothing is cut off
    assert invoke("--version") == Outcome(0, f"dsedge {edge.__version__}\n", "")
    assert "--repetition-penalty" in invoke("run", "--help").out


def test_u2_ctrl_c_outside_an_answer_is_exit_130_and_leaves_nothing(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(source: str, out: Path, **_: object) -> None:
        with BundleFolder(out) as folder:
            (folder.path / "weights.safetensors").write_bytes(b"half")
            raise KeyboardInterrupt

    monkeypatch.setattr(edge, "export", interrupted, raising=False)
    assert invoke("export", "source", "-o", "new.dsedge").code == 130
    assert [path.name for path in tmp_path.iterdir() if "dsedge" in path.name] == []


def test_the_store_is_listed_and_emptied(invoke: Invoke) -> None:
    rows = [line.split() for line in invoke("list").out.splitlines()]
    assert rows[0] == ["name", "store", "size", "family", "variant", "license"]
    assert ["smollm2-135m-instruct", "no", "98.4", "MB", "llama", "sub1b", "Apache-2.0"] in rows
    write_bundle(store.place("mine"), [ANSWER])
    models = {item["name"]: item for item in json.loads(invoke("list", "--json").out)["models"]}
    assert (models["mine"]["in_store"], models["mine"]["license"], models["mine"]["pinned"]) == (True, None, None)
    assert (models["gemma3-270m"]["in_store"], models["gemma3-270m"]["pinned"]) == (False, True)
    assert invoke("run", "mine", "hi", "--runtime", "scripted").out == ANSWER + "\n"
    assert invoke("rm", "mine") == Outcome(0, "", "removed mine\n")
    assert store.names() == []


def test_u1_a_row_of_a_table_is_one_line_in_a_pipe(invoke: Invoke) -> None:
    name = "long-" * 19
    write_bundle(store.place(name + "a"), [ANSWER])
    assert [line.split()[-1] for line in invoke("list").out.splitlines() if name in line] == ["kB"]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_names_stay_whole_in_a_table_on_a_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "is_terminal", lambda stream: True)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    names = [entry.name for entry in edge.list_models()]
    shown, told = io.StringIO(), io.StringIO()
    terminal.print_table(("name", "of"), [(name, "a long family's name " * 2) for name in names], shown)
    assert [name for name in names if name not in shown.getvalue()] == []
    terminal.print_table(("runtime", "why"), [("native", "one two three four five six seven eight")], told)
    folded = [line.strip() for line in told.getvalue().splitlines()[1:]]
    assert folded == {40: ["native   one two three four five six", "seven eight"]}.get(
        width, ["native   one two three four five six seven eight"]
    )


def test_run_pulls_a_catalogued_model_first(invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def deliver(source: Path, out: Path, **_: object) -> None:
        assert source == tmp_path / "source.gguf"
        write_bundle(out, [ANSWER])

    monkeypatch.setattr("edge.pulling.fetch", lambda model, progress: Fetched(tmp_path / "source.gguf"))
    monkeypatch.setattr(edge, "export", deliver, raising=False)
    done = invoke("run", "smollm2-135m-instruct", "hi", "--runtime", "scripted")
    assert (done.code, done.out) == (0, ANSWER + "\n")
    assert "Apache-2.0" in done.err
    assert store.names() == ["smollm2-135m-instruct"]
    assert invoke("pull", "smollm2-135m-instruct").err.startswith("smollm2-135m-instruct is in the store already")


def test_text_on_stdin_in_another_encoding_is_explained(invoke: Invoke, bundle: Path) -> None:
    script = "import sys; from edge.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", script, *map(str, run(bundle))]
    for encoding, named in (("utf-8", b""), ("utf-8:surrogateescape", b""), ("ascii", b" and no ascii")):
        environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            command, input="Größe".encode("cp1252"), capture_output=True, env=environment, check=False
        )
        assert (done.returncode, done.stdout) == (2, b"")
        assert b"the text on stdin is no UTF-8" + named + b"; convert it" in done.stderr
    environment["PYTHONIOENCODING"] = "cp1252"
    assert subprocess.run(command, input="Größe".encode("cp1252"), env=environment, check=False).returncode == 0


def test_doctor_names_every_backend_but_the_fake(invoke: Invoke) -> None:
    found = json.loads(invoke("doctor", "--json").out)
    assert list(found["runtimes"]) == ["native", "onnx", "torch"]
    assert "scripted" not in invoke("doctor").out
    assert [name for name, item in found["runtimes"].items() if item["auto"]] == [runtime.automatic()]
    assert "chosen by auto" in invoke("doctor").out


def test_inspect_counts_what_the_spec_implies(invoke: Invoke, bundle: Path) -> None:
    found = json.loads(invoke("inspect", bundle, "--json", "--full", "--runtime", "scripted").out)
    # One layer of width 2: embedding and head 260 × 2, q k v o and the three of the MLP 2 × 2, three norms of 2.
    assert found["parameters"] == 2 * 260 * 2 + 7 * 4 + 3 * 2
    assert found["bits_per_weight"] == 32
    assert {row["kind"]: row["count"] for row in found["tensors"]}["mlp_norm"] == 1
    assert found["kv"]["bytes_per_token"] == 2 * 1 * 2 * 4
    assert found["memory"]["kv"] == 4096 * 16
    assert found["bytes"] == sum(path.stat().st_size for path in bundle.iterdir() if path.name != "manifest.json")
    line = "4096 tokens, 16 bytes of KV a token in float32 on scripted\n"
    assert line in invoke("inspect", bundle, "--runtime", "scripted").out


INSPECTED = """name path bytes parameters bits_per_weight recipe family layers hidden_size attention vocab_size
tied_head ends context kv memory sampling mean_kl top1 origin"""
DETAILED = "tensors rules spec graphs artefacts quality toolchain files"


def test_inspect_is_short_and_its_keys_stay(invoke: Invoke, bundle: Path) -> None:
    """Scripts go by these keys: a change here breaks them."""
    words = ("inspect", bundle, "--runtime", "scripted")
    found = json.loads(invoke(*words, "--json").out)
    assert list(found) == INSPECTED.split()
    assert (found["name"], found["recipe"], found["mean_kl"], found["layers"]) == ("scripted", None, None, 1)
    assert list(json.loads(invoke(*words, "--json", "--full").out)) == [*INSPECTED.split(), *DETAILED.split()]
    short = invoke(*words).out
    assert len(short.splitlines()) == 13
    assert "mlp_norm" not in short
    assert "mlp_norm" in invoke(*words, "--full").out


def test_json_in_a_stream_is_an_object_a_line(invoke: Invoke, bundle: Path) -> None:
    lines = [json.loads(line) for line in invoke(*run(bundle, "hi", "--json", "--stream")).out.splitlines()]
    assert lines[:-1] == [{"text": letter} for letter in ANSWER]
    assert (lines[-1]["text"], lines[-1]["finish_reason"]) == (ANSWER, "stop")
    done = invoke(*run(bundle, "hi", "--stream"))
    assert (done.code, done.out) == (2, "")
    assert "--stream is for --json" in done.err


@pytest.mark.parametrize(("line", "found"), [
    ("dsedge run --policy ", ["error", "sliding", "evict", "spill"]),
    ("dsedge run --kv-dtype f", ["float32", "float16"]),
    ("dsedge bench --runtime ", ["auto", "native", "onnx", "torch"]),
    ("dsedge export --recipe s", ["sub1b"]),
    ("dsedge completion z", ["zsh"]),
    ("dsedge run smollm2-13", ["smollm2-135m-instruct"]),
])  # fmt: skip
def test_the_shell_completes_values(line: str, found: list[str]) -> None:
    asked = {"_DSEDGE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    done = subprocess.run(
        [sys.executable, "-m", "edge"],
        env={**os.environ, **asked, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.stdout.split() == found


def test_bench_ends_in_one_json_line(invoke: Invoke, bundle: Path) -> None:
    options = ("--runtime", "scripted", "--prompt", "20", "--new", "4", "--runs", "3", "--threads", "2")
    done = invoke("bench", bundle, *options)
    assert done.code == 0
    found = json.loads(done.out)
    needed = {"runtime", "threads", "prompt", "new", "prefill_tok_s", "decode_tok_s", "ttft_ms", "load_s", "peak_mb"}
    assert needed <= found.keys()
    assert (found["runtime"], found["threads"], found["prompt"], found["new"]) == ("scripted", 2, 20, 4)
    rates = sorted(item["decode_tok_s"] for item in found["runs"])
    assert found["decode_tok_s"] == rates[1]
    assert found["prefill_tok_s"] == pytest.approx(20 / found["ttft_ms"] * 1000, rel=0.5)
    assert "median" in done.err
    assert invoke("bench", bundle, *options, "--json").err == ""
