"""Look for inputs that break a reader: `python -m tests.fuzz TARGET --seconds 60` (needs atheris).

An input that gets anything but an EdgeError out of a reader, takes more than 20 seconds, or needs too much memory is
written to the current folder as crash-…, timeout-… or oom-… and ends the run with a status that is not 0.
What has been learned of a target is kept in .fuzz/TARGET for the next run.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.fuzz.limits import bounded_memory

MEMORY = 1 << 30
NAMES = ("gguf", "safetensors", "config", "metadata", "tokenizer", "manifest", "template", "answer", "program")
_BYTES = b"\1"  # the input is what follows; after any other first byte, choices among hostile variants of the seeds


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.split("\n")[0])
    parser.add_argument("target", choices=[*NAMES, "all"])
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers; 0: another one each time")
    arguments = parser.parse_args()
    if importlib.util.find_spec("atheris") is None:
        print(
            "atheris is not installed, and not every Python and system has a wheel of it: pip install --group fuzz "
            "with CPython 3.11 to 3.13 on Linux or macOS",
            file=sys.stderr,
        )
        return 2
    if arguments.target != "all":
        fuzz(arguments.target, arguments.seconds, arguments.seed)
        return 0
    # libFuzzer ends its process, so each target has one of its own.
    options = ["--seconds", str(arguments.seconds), "--seed", str(arguments.seed)]
    commands = [[sys.executable, "-m", "tests.fuzz", name, *options] for name in NAMES]
    return max(subprocess.run(command, check=False).returncode != 0 for command in commands)


def fuzz(name: str, seconds: int, seed: int) -> None:
    """Does not return: libFuzzer ends the process."""
    import atheris

    with atheris.instrument_imports(include=["edge", "exporters"]):
        from tests.fuzz.targets import TARGETS, attempt
    from tests.fuzz.mutations import variants

    target = TARGETS[name]
    work = Path(tempfile.mkdtemp(prefix="dsedge-fuzz-"))
    os.environ["DSEDGE_CACHE"] = str(work / "cache")
    (work / "seeds").mkdir()
    seeds = target.seeds(work / "seeds")
    corpus = Path(".fuzz") / name
    corpus.mkdir(parents=True, exist_ok=True)
    for number, start in enumerate(seeds):
        (corpus / f"seed-{number}").write_bytes(_BYTES + start)
    (corpus / "choices").write_bytes(bytes(range(256)) * 4)
    chosen = variants(seeds, lambda data: attempt(target, data, work))

    def once(data: bytes) -> Any:
        with bounded_memory(MEMORY):
            return attempt(target, data[1:], work) if data[:1] == _BYTES else chosen(data[1:])

    options = [f"-max_total_time={seconds}", f"-seed={seed}", "-timeout=20", "-rss_limit_mb=4096", "-max_len=30000"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], once)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
