"""`dsedge doctor`: which backends and devices work here, and why the others do not."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from typing import Annotated

import typer

import edge
from edge import choosing, paths, runtime, sampling, store
from edge.commands import terminal
from edge.cores import physical_cores
from edge.errors import DeviceError


@dataclass(frozen=True, slots=True, kw_only=True)
class Doctor:
    """Say which backends work here, and why others do not.

    Where a GPU could be used, `auto` takes the backend that was fastest when a bundle was first opened, and what was
    measured then is told.
    """

    json: Annotated[bool, typer.Option("--json", help="One line of JSON instead of a table.")] = False

    def execute(self) -> int:
        found = {name: runtime.support(name) for name in runtime.RUNTIMES if name not in runtime.EXPLICIT}
        chosen = _automatic()
        system = {
            "dsedge": edge.__version__,
            "python": platform.python_version(),
            "system": platform.platform(),
            "physical_cores": physical_cores(),
            "sampling": sampling.fastest_core(),
            "store": str(store.folder()),
            "cache": str(paths.cache_folder()),
        }
        if self.json:
            backends = {
                name: {
                    "devices": list(support.devices),
                    "reason": support.reason or None,
                    "auto": name == chosen,
                    "details": runtime.details(name),
                }
                for name, support in found.items()
            }
            terminal.print_json({**system, "runtimes": backends, "measured": choosing.told()})
            return 0
        for key, value in system.items():
            terminal.say(f"{key.replace('_', ' ')}: {terminal.visible(str(value))}")
        rows = [
            (name, ", ".join(support.devices) or "none", "; ".join(_notes(name == chosen, support)))
            for name, support in found.items()
        ]
        terminal.print_table(("runtime", "devices", ""), rows, sys.stdout)
        for name in found:
            for line in runtime.details(name):
                terminal.say(f"{name} on {terminal.visible(line)}")
        for line in choosing.told():
            terminal.say(f"measured for auto: {terminal.visible(line)}")
        return 0


def _notes(chosen: bool, support: runtime.Support) -> list[str]:
    return [*(["chosen by auto"] if chosen else []), *([support.reason] if support.reason else [])]


def _automatic() -> str | None:
    """What "auto" would choose; None where nothing works, which is what this command is there to show."""
    try:
        return runtime.automatic()
    except DeviceError:
        return None
