"""Cores are counted from what each system says, here from files and records made by hand."""

from __future__ import annotations

import os
import struct
import sys
import threading
from pathlib import Path

import pytest

from edge.cores import apple_cores, linux_cores, physical_cores, share_out, startable_threads, windows_cores
from edge.memory import available_memory, memory_limit


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def siblings(root: Path, *lists: str) -> None:
    """The topology of processors by number: whom each shares its core with."""
    for cpu, text in enumerate(lists):
        write(root, {f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": text})


def test_hyper_threads_count_once(tmp_path: Path) -> None:
    siblings(tmp_path, "0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7")
    assert linux_cores(tmp_path, range(8)) == 4


def test_only_allowed_processors_count(tmp_path: Path) -> None:
    siblings(tmp_path, "0-1", "0-1", "2-3", "2-3", "4-5", "4-5")
    assert linux_cores(tmp_path, {0, 1, 2}) == 2
    assert linux_cores(tmp_path, {5}) == 1


def test_a_system_without_topology_counts_processors(tmp_path: Path) -> None:
    assert linux_cores(tmp_path, range(6)) == 6


@pytest.mark.parametrize(
    ("limit", "cores"),
    [("max 100000", 8), ("200000 100000", 2), ("250000 100000", 2), ("50000 100000", 1), ("1600000 100000", 8)],
)
def test_a_quota_of_cgroup_v2(tmp_path: Path, limit: str, cores: int) -> None:
    write(tmp_path, {"proc/self/cgroup": "0::/app.slice/app", "sys/fs/cgroup/app.slice/app/cpu.max": limit})
    assert linux_cores(tmp_path, range(8)) == cores


def test_the_tightest_quota_of_the_groups_above_holds(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a/b",
            "sys/fs/cgroup/a/b/cpu.max": "600000 100000",
            "sys/fs/cgroup/a/cpu.max": "300000 100000",
        },
    )
    assert linux_cores(tmp_path, range(8)) == 3


def test_a_quota_of_cgroup_v1_whose_path_is_the_hosts(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/docker/1\n4:cpu,cpuacct:/docker/1\n1:cpuset:/docker/1",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "400000",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        },
    )
    assert linux_cores(tmp_path, range(8)) == 4
    write(tmp_path, {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1"})
    assert linux_cores(tmp_path, range(8)) == 8


def test_efficiency_cores_of_a_hybrid_intel_processor_do_not_count(tmp_path: Path) -> None:
    siblings(tmp_path, "0-1", "0-1", "2-3", "2-3", *(str(cpu) for cpu in range(4, 12)))
    write(tmp_path, {"sys/devices/cpu_core/cpus": "0-3", "sys/devices/cpu_atom/cpus": "4-11"})
    assert linux_cores(tmp_path, range(12)) == 2
    assert linux_cores(tmp_path, {6, 7, 8}) == 3  # there is nothing else


def test_small_arm_cores_do_not_count(tmp_path: Path) -> None:
    for cpu, capacity in enumerate([325, 325, 325, 325, 900, 900, 900, 1024]):
        write(tmp_path, {f"sys/devices/system/cpu/cpu{cpu}/cpu_capacity": str(capacity)})
    assert linux_cores(tmp_path, range(8)) == 4
    assert linux_cores(tmp_path, range(4)) == 4


def test_a_mac_counts_its_fastest_kind_of_core() -> None:
    silicon = {"hw.perflevel0.physicalcpu": 4, "hw.perflevel1.physicalcpu": 6, "hw.physicalcpu": 10}
    assert apple_cores(silicon.get) == 4
    assert apple_cores({"hw.physicalcpu": 6}.get) == 6
    assert apple_cores({}.get) == os.cpu_count()


def record(efficiency: int, mask: int, group: int = 0) -> bytes:
    """A core as Windows describes it: relationship, size; flags, class, 20 bytes, groups; mask, group, 3 words."""
    return struct.pack("<IIBB20xHQH6x", 0, 48, int(mask.bit_count() > 1), efficiency, 1, mask, group)


def test_windows_counts_cores_of_the_highest_class_that_the_affinity_allows() -> None:
    hybrid = record(1, 0b11) + record(1, 0b1100) + record(0, 0b10000) + record(0, 0b100000)
    assert windows_cores(hybrid, 0xFF) == 2
    assert windows_cores(hybrid, 0b1110011) == 1
    assert windows_cores(hybrid, 0b110000) == 2
    plain = b"".join(record(0, 0b11 << 2 * core) for core in range(6))
    assert windows_cores(plain, 0xFFF) == 6
    assert windows_cores(plain + record(0, 0b11, group=1), 0b11) == 7
    assert windows_cores(b"", 0) == os.cpu_count()


def test_this_machine_has_cores() -> None:
    assert 1 <= physical_cores() <= (os.cpu_count() or 1)
    if sys.platform == "linux":
        assert physical_cores() <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize("limits", [("900000000", "max"), ("max", "900000000")])
def test_n8_the_tightest_memory_limit_of_the_groups_above_holds(tmp_path: Path, limits: tuple[str, str]) -> None:
    write(tmp_path, {"proc/self/cgroup": "0::/a/b"})
    assert memory_limit(tmp_path) is None
    inner, outer = limits
    write(tmp_path, {"sys/fs/cgroup/a/b/memory.max": inner, "sys/fs/cgroup/a/memory.max": outer})
    assert memory_limit(tmp_path) == 900_000_000


def test_n8_a_memory_limit_of_cgroup_v1(tmp_path: Path) -> None:
    group = {"proc/self/cgroup": "4:memory:/docker/1", "sys/fs/cgroup/memory/memory.limit_in_bytes": "500000000"}
    write(tmp_path, group)
    assert memory_limit(tmp_path) == 500_000_000


def test_available_memory_is_what_system_and_group_leave(tmp_path: Path) -> None:
    assert available_memory(tmp_path) is None
    write(tmp_path, {"proc/self/cgroup": "0::/a", "proc/meminfo": "MemTotal: 999 kB\nMemAvailable:     700 kB\n"})
    assert available_memory(tmp_path) == 700 * 1024
    write(tmp_path, {"sys/fs/cgroup/a/memory.max": "5000"})
    assert available_memory(tmp_path) == 5000


def test_n8_work_is_shared_among_the_threads_that_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four are wanted and the system gives one more; every item is done once."""
    start, done = threading.Thread.start, list[int]()
    given: list[threading.Thread] = []

    def refuse(thread: threading.Thread) -> None:
        if given:
            raise RuntimeError("can't start new thread")
        given.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    share_out(done.append, range(100), 4)
    assert sorted(done) == list(range(100))
    given.clear()
    assert startable_threads(4) == 2


def test_n8_an_error_of_shared_work_is_raised_and_ends_it() -> None:
    done: list[int] = []

    def work(item: int) -> None:
        if item == 3:
            raise ZeroDivisionError
        done.append(item)

    with pytest.raises(ZeroDivisionError):
        share_out(work, range(10**9), 2)
    assert 3 not in done
