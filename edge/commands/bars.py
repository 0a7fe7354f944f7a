"""How far long work is, on stderr: a line that moves on a terminal of any width, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, ProgressColumn, Task, TaskID
from rich.progress import Progress as Bars
from rich.table import Column
from rich.text import Text

from edge.commands import terminal
from edge.progress import Progress, Transfer

_BAR = 72  # columns of a terminal from which on there is room for a bar
_LARGE = 10_000_000  # bytes from which on a transfer is worth a line for each quarter
_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


@contextmanager
def moving() -> Iterator[Progress]:
    """For a terminal: one line a stage, with bytes, speed and the time that is left where something is transferred."""
    console = terminal.console(sys.stderr)
    bar = [BarColumn(bar_width=None, table_column=Column(ratio=1))] if console.width >= _BAR else []
    tasks: dict[str, TaskID] = {}
    with Bars(_Stage(), *bar, _Figures(), console=console, transient=True, expand=True) as bars:

        def show(stage: str, done: float, transfer: Transfer | None = None, /) -> None:
            new = stage not in tasks
            if new:
                for task in tasks.values():
                    bars.update(task, visible=False)
                tasks[stage] = bars.add_task(terminal.visible(stage), total=1.0, moved=None)
            if transfer is None:
                bars.update(tasks[stage], completed=done)
            else:
                bars.update(tasks[stage], completed=transfer.done, total=transfer.total, moved=transfer)
            if new:
                bars.refresh()  # a short stage is seen too

        yield show


@contextmanager
def lines() -> Iterator[Progress]:
    """For a file or a pipe: a line for each stage, and one for each quarter of a large transfer."""
    quarters: dict[str, int] = {}

    def show(stage: str, done: float, transfer: Transfer | None = None, /) -> None:
        total = transfer.total if transfer else None
        quarter = int(done * 4) if total and total >= _LARGE else 0
        if stage not in quarters:
            terminal.note(f"{stage} ({size(total)})" if total else stage)
        elif quarter > quarters[stage]:
            terminal.note(f"{stage}: {quarter * 25}%")
        quarters[stage] = max(quarter, quarters.get(stage, 0))

    yield show


class _Stage(ProgressColumn):
    """What is being done, cut where the terminal is too narrow for it."""

    def __init__(self) -> None:
        super().__init__(Column(no_wrap=True, overflow="ellipsis", ratio=2))

    def render(self, task: Task) -> Text:
        return Text(task.description, no_wrap=True, overflow="ellipsis")


class _Figures(ProgressColumn):
    """The share that is done, or bytes, speed and time left; never cut, since the stage gives way."""

    def __init__(self) -> None:
        super().__init__(Column(no_wrap=True, justify="right"))

    def render(self, task: Task) -> Text:
        return Text(figures(task.fields["moved"], task.percentage, task.speed, task.time_remaining), no_wrap=True)


def figures(moved: Transfer | None, percent: float, speed: float | None, left: float | None) -> str:
    """ "45.2/98.4 MB 5.1 MB/s 0:11" for a transfer as far as these are known, "46%" for anything else."""
    if moved is None:
        return f"{percent:.0f}%"
    parts = [size(moved.done) if moved.total is None else _of(moved.done, moved.total)]
    if speed:
        parts.append(f"{size(speed)}/s")
    if left is not None:
        minutes, seconds = divmod(round(left), 60)
        hours, minutes = divmod(minutes, 60)
        parts.append(f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}")
    return " ".join(parts)


def size(count: float) -> str:
    """Bytes in the largest decimal unit of which there is at least one."""
    unit, name = next((entry for entry in _UNITS if count >= entry[0]), (1, "B"))
    return f"{count / unit:.1f} {name}" if unit > 1 else f"{count:.0f} B"


def _of(done: int, total: int) -> str:
    """Both in the unit of the total."""
    unit, name = next((entry for entry in _UNITS if total >= entry[0]), (1, "B"))
    return f"{done / unit:.1f}/{total / unit:.1f} {name}" if unit > 1 else f"{done}/{total} B"
