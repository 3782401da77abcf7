"""The machine, and what the system counts for this process."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

LOWEST_PRIORITY = 19
"""The lowest priority that systems have."""


def physical_memory() -> int:
    """Return the bytes of memory of the machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def available_memory() -> int | None:
    """Return the bytes that new processes could have, or None where Linux's files say it."""
    return None


def disk_reads() -> int:
    """Return how many pages of this process had to be read from a disk so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def peak_rss() -> int:
    """Return the most resident bytes that this process has had."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    except (OSError, IndexError):  # not Linux, where getrusage would also count the parent before exec
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def is_ram_disk(folder: Path, mounts: Path) -> bool:
    """Return whether the files of an existing folder are in memory (Linux: tmpfs or ramfs, of the list `mounts`)."""
    device = folder.stat().st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    # 36 35 98:0 /root /mount/point options ... - type source options
    filesystems = (line.partition(" - ")[2].split()[0] for line in _lines(mounts) if line.split()[2] == name)
    return any(filesystem in ("tmpfs", "ramfs") for filesystem in filesystems)


def lower_priority(niceness: int) -> None:
    """Lower the priority of this process, and of processes that it starts, to `niceness` (0 to LOWEST_PRIORITY).

    A process with a lower priority keeps it, because only the superuser may raise a priority.
    """
    threads = [0]  # this process
    if sys.platform == "linux":  # each thread has its own priority on Linux
        threads = [int(name) for name in os.listdir("/proc/self/task")]
    for thread in threads:
        try:
            if os.getpriority(os.PRIO_PROCESS, thread) < niceness:
                os.setpriority(os.PRIO_PROCESS, thread, niceness)
        except ProcessLookupError:  # the thread has ended meanwhile
            continue


def on_battery() -> Callable[[], bool] | None:
    """Return a function that tells whether the machine runs on battery, if the system has one call for that (macOS).

    Returns None where Linux's files say it. Raises LookupError, in words, if there is no battery.
    """
    if sys.platform != "darwin":
        return None
    return _mac_battery(_pmset)


def _mac_battery(ask: Callable[[], str]) -> Callable[[], bool]:
    """Return the function for macOS. `ask` returns the output of `pmset -g batt`."""
    if "Battery-" not in ask():  # "InternalBattery-0"
        raise LookupError("pmset shows no battery in this machine")
    return lambda: "'Battery Power'" in ask()


def _pmset() -> str:
    import subprocess  # not needed by training processes on other systems

    try:
        return subprocess.run(["pmset", "-g", "batt"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""


def _lines(path: Path) -> Iterator[str]:
    with suppress(OSError), path.open(errors="replace") as file:
        yield from map(str.rstrip, file)
