"""How many threads compute here without one of them holding up the rest: the performance cores this process may use.

A forward has a barrier after each of its steps. Hyper-threads share the units that it keeps busy, and a core of half
the speed delays every step more than it helps; so neither counts, and efficiency cores only if there are no others.
"""

from __future__ import annotations

import os
import struct
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar, cast

from edge.cgroups import read_limits, read_text

Item = TypeVar("Item")


def startable_threads(wanted: int) -> int:
    """How many of the wanted threads, this one counted, the system lets compute at once: found by starting them.

    Limits on processes, memory and address space, of a user or a container, have no one place to read them from.
    """
    enough = threading.Event()
    started: list[threading.Thread] = []
    while len(started) < wanted - 1 and (thread := _start(enough.wait)):
        started.append(thread)
    enough.set()
    for thread in started:
        thread.join()
    return len(started) + 1


def share_out(work: Callable[[Item], None], items: Iterable[Item], threads: int) -> None:
    """Do `work` on every item, in this thread and as many others as can be had, `threads` in all.

    Raises the first error of any of them, once all have ended; no further items are begun then.
    """
    waiting, lock, end = iter(items), threading.Lock(), object()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            while not errors:
                with lock:
                    item = next(waiting, end)
                if item is end:
                    return
                work(cast(Item, item))
        except BaseException as error:
            errors.append(error)

    started = [thread for _ in range(threads - 1) if (thread := _start(run))]
    try:
        run()
        for thread in started:
            thread.join()
    except BaseException as error:  # an interrupt while waiting
        errors.append(error)
    if errors:
        raise errors[0]


def _start(run: Callable[[], object]) -> threading.Thread | None:
    """A thread that runs it, or None where the system gives no more threads."""
    thread = threading.Thread(target=run, daemon=True)
    try:
        thread.start()
    except (RuntimeError, MemoryError):
        return None
    return thread


def physical_cores() -> int:
    """Performance cores that this process may run on, hyper-threads counted once where the system tells them apart."""
    if sys.platform == "linux":
        return linux_cores(Path("/"), os.sched_getaffinity(0))
    if sys.platform == "darwin":
        return apple_cores(_sysctl)
    if sys.platform == "win32":
        return windows_cores(*_windows_processors())
    return os.cpu_count() or 1


def linux_cores(root: Path, allowed: Iterable[int]) -> int:
    """From the system's files below `root` and the processors that the process's affinity and cpuset allow."""
    fast = _fast(root / "sys/devices", set(allowed))
    siblings = {
        read_text(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in fast
    }
    return max(1, min(len(siblings), _quota(root)))


def _fast(devices: Path, allowed: set[int]) -> set[int]:
    """The processors that are no efficiency cores, or all of them if all are."""
    intel = _cpu_list(read_text(devices / "cpu_core/cpus"))  # there on hybrid processors only
    fast = allowed & intel
    if not fast:
        # What the scheduler of Arm's kernels goes by: 1024 for the fastest core, about 250 to 500 for a small one.
        capacity = {cpu: int(read_text(devices / f"system/cpu/cpu{cpu}/cpu_capacity") or 1024) for cpu in allowed}
        fast = {cpu for cpu in allowed if 2 * capacity[cpu] > max(capacity.values())}
    return fast


def _quota(root: Path) -> int:
    """The whole processors' worth of time that the cgroups of the process, of either version, may use.

    Rounded down: threads beyond it would all be stopped together for the rest of a period, again and again.
    """
    found = read_limits(root, "cpu", v1=("cpu.cfs_quota_us", "cpu.cfs_period_us"), v2="cpu.max")
    return min((limit[0] // limit[1] for limit in found if len(limit) == 2), default=sys.maxsize)


def _cpu_list(text: str) -> set[int]:
    """The numbers in a list such as 0-3,8."""
    ranges = [part.split("-") for part in text.split(",") if part]
    return {cpu for ends in ranges for cpu in range(int(ends[0]), int(ends[-1]) + 1)}


def apple_cores(sysctl: Callable[[str], int | None]) -> int:
    """From macOS, which numbers its kinds of cores from the fastest on; Intel Macs have one kind."""
    return sysctl("hw.perflevel0.physicalcpu") or sysctl("hw.physicalcpu") or os.cpu_count() or 1


def windows_cores(records: bytes, mask: int) -> int:
    """From the PROCESSOR_RELATIONSHIP records of GetLogicalProcessorInformationEx, and the affinity of the process.

    The mask is of one group of up to 64 processors; with several groups it says nothing about the others and is not
    looked at. A job's limit of processor time is not known either.
    """
    cores: list[tuple[int, int, int]] = []  # efficiency class (the fastest have the highest), group, mask
    while records:
        size = int.from_bytes(records[4:8], "little")
        kind, mask_of, group = struct.unpack_from("<B", records, 9)[0], *struct.unpack_from("<QH", records, 32)
        cores.append((kind, group, mask_of))
        records = records[size:]
    if len({group for _, group, _ in cores}) == 1:
        cores = [core for core in cores if core[2] & mask] or cores
    fastest = max((kind for kind, _, _ in cores), default=0)
    return sum(kind == fastest for kind, _, _ in cores) or os.cpu_count() or 1


def _sysctl(name: str) -> int | None:
    """A number that macOS knows by that name, or None."""
    import ctypes

    value, size = ctypes.c_int64(0), ctypes.c_size_t(8)
    failed = ctypes.CDLL(None).sysctlbyname(name.encode(), ctypes.byref(value), ctypes.byref(size), None, 0)
    return None if failed else value.value


if sys.platform == "win32":

    def _windows_processors() -> tuple[bytes, int]:
        """The records of every core, and the processors that this process may run on."""
        import ctypes

        kernel = ctypes.WinDLL("kernel32")
        size = ctypes.c_uint32(0)
        kernel.GetLogicalProcessorInformationEx(0, None, ctypes.byref(size))  # 0: cores. Fails, and says the size
        records = ctypes.create_string_buffer(size.value)
        known = kernel.GetLogicalProcessorInformationEx(0, records, ctypes.byref(size))
        process, system = ctypes.c_size_t(0), ctypes.c_size_t(0)
        kernel.GetCurrentProcess.restype = ctypes.c_void_p
        handle = ctypes.c_void_p(kernel.GetCurrentProcess())
        kernel.GetProcessAffinityMask(handle, ctypes.byref(process), ctypes.byref(system))
        return (records.raw[: size.value] if known else b""), process.value
