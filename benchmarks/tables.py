"""Tables of figures, as aligned text or as Markdown, and the machine that they were measured on."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runtimes import native


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a head; every cell is text already. `notes` are lines below it."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = field(default=())

    def render(self, *, markdown: bool) -> str:
        """The first column is flush left, the others flush right."""
        lines = [self.head, *self.rows]
        if markdown:
            rule = ("---", *["---:"] * (len(self.head) - 1))
            body = ["| " + " | ".join(line) + " |" for line in (self.head, rule, *self.rows)]
            return "\n".join([f"**{self.title}**", "", *body, *(f"\n{note}" for note in self.notes)])
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.head))]
        body = ["  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines]
        return "\n".join([self.title, *body, *self.notes])


def show(tables: Sequence[Table], *, markdown: bool) -> None:
    """Print tables, separated by empty lines."""
    print("\n\n".join(table.render(markdown=markdown) for table in tables))


def parser(description: str | None) -> argparse.ArgumentParser:
    """A command's parser, with what every benchmark offers."""
    found = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--markdown", action="store_true", help="print Markdown tables")
    return found


def machine() -> str:
    """The processor, cores, system and Python, and how busy the machine is: the load average of the last minute.

    A processor's name may say nothing of its instructions, so the kernel set that the native engine takes is there too.
    """
    load = "" if sys.platform == "win32" else f", load {os.getloadavg()[0]:.2f} at the start"
    kernels = f" ({native.kernels()})" if native.support().devices else ""
    system = f"{platform.system()}, Python {platform.python_version()}"
    return f"{_processor()}{kernels}, {os.cpu_count()} cores, {system}{load}"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
