"""The limits that Linux sets to groups of processes, as containers and services have them; both versions of cgroups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from edge import texts


def read_limits(root: Path, controller: str, *, v1: tuple[str, ...], v2: str) -> Iterator[list[int]]:
    """The numbers in a controller's files, for this process's group and each group above it, below a root folder.

    `v1` and `v2` name the files of either version. Groups without a limit ("max", -1, no such file) are left out.
    """
    for line in read_text(root / "proc/self/cgroup").splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / (controller if controllers else "")
        group = mount / path.lstrip("/")
        # Inside a container the path may be the host's, and only the mount itself be there; a limit above holds too.
        for folder in [group, *group.parents]:
            names = v1 if controllers else (v2,)
            words = [word for name in names for word in read_text(folder / name).split()]
            if words and all(word.isdigit() and int(word) for word in words):
                yield [int(word) for word in words]
            if folder == mount:
                break


def read_text(path: Path) -> str:
    """What a file of the system says, or "" where it has none."""
    try:
        return texts.read_system(path).strip()
    except OSError:
        return ""
