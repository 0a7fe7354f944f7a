"""Run by a test in a process of its own: exports that are killed at one file-system event after another.

    python killed_exports.py SOURCE TARGET STEP

Each child process exports SOURCE over TARGET and kills itself right before event 1, 1 + STEP, … in the target's folder,
and before every single one while the new bundle is complete and not yet in its place, until one gets through. After
each, prints a JSON line: the event, whether it was killed, the name in TARGET's manifest (TARGET must be whole), and
what is left beside it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from edge.bundle import verify_bundle
from edge.errors import EdgeError
from exporters.export import export

EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "os.truncate", "shutil.rmtree"}


def export_and_die(source: Path, target: Path, last: int) -> None:
    """Die before the event number `last`: a file or folder made, opened, renamed or removed beside the target."""
    count = 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        # Removing a tree names files by a descriptor of their folder.
        ours = event in EVENTS and (str(target.parent) in str(arguments[0]) or event in ("os.remove", "os.rmdir"))
        if ours or (event == "ctypes.dlsym" and arguments[1] == "renameat2"):
            count += 1
            if count == last:
                print(event, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    export(source, target, name="new", effort="none")


def main() -> None:
    source, target, step = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    event = 1
    killed = True
    while killed:
        child = os.fork()
        if not child:
            export_and_die(source, target, event)
            os._exit(0)
        killed = os.waitpid(child, 0)[1] != 0
        leftovers = []
        for path in target.parent.glob(".*.partial-*"):
            try:
                leftovers.append(verify_bundle(path / "bundle").manifest.name)
            except EdgeError as error:  # NotFoundError: it had just been begun, or taken apart
                leftovers.append(type(error).__name__)
        name = verify_bundle(target).manifest.name
        print(json.dumps({"event": event, "killed": killed, "name": name, "leftovers": leftovers}), flush=True)
        event += 1 if "new" in leftovers and name != "new" else step


main()
