"""The machine, and what the system counts for this process."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from ctypes import wintypes
from pathlib import Path

from featherback.core.system.windows import api

assert sys.platform == "win32"


LOWEST_PRIORITY = 19
"""The lowest priority, as on other systems."""
_BELOW_NORMAL, _IDLE = 0x4000, 0x40
_RAM_DISK = 6
_NO_BATTERY, _UNKNOWN = 128, 255


class _Memory(ctypes.Structure):
    """MEMORYSTATUSEX."""

    _fields_ = (
        ("size", wintypes.DWORD),
        ("load", wintypes.DWORD),
        ("physical", ctypes.c_uint64),
        ("available", ctypes.c_uint64),
        ("others", ctypes.c_uint64 * 5),
    )


class _Power(ctypes.Structure):
    """SYSTEM_POWER_STATUS."""

    _fields_ = (
        ("on_line", ctypes.c_uint8),
        ("battery", ctypes.c_uint8),
        ("percent", ctypes.c_uint8),
        ("saver", ctypes.c_uint8),
        ("life", wintypes.DWORD),
        ("full_life", wintypes.DWORD),
    )


def _memory() -> _Memory:
    found = _Memory()
    found.size = ctypes.sizeof(found)
    api.check(api.kernel32.GlobalMemoryStatusEx(ctypes.byref(found)))
    return found


def physical_memory() -> int:
    """Return the bytes of memory of the machine."""
    return int(_memory().physical)


def available_memory() -> int | None:
    """Return the bytes that new processes could have."""
    return int(_memory().available)


def disk_reads() -> int:
    """Return how many pages of this process had to be read. Windows also counts those that were in its cache."""
    return int(api.memory_of().faults)


def peak_rss() -> int:
    """Return the most resident bytes (working set) that this process has had."""
    return int(api.memory_of().peak_working_set)


def is_ram_disk(folder: Path, mounts: Path) -> bool:
    """Return whether the files of an existing folder are in memory."""
    drive = os.path.splitdrive(os.path.abspath(folder))[0]
    return bool(api.kernel32.GetDriveTypeW(drive + "\\") == _RAM_DISK)


def lower_priority(niceness: int) -> None:
    """Lower the priority of this process, and of processes that it starts: below normal, and idle from 10 on.

    A process with a lower priority keeps it.
    """
    this = api.kernel32.GetCurrentProcess()
    if niceness and api.kernel32.GetPriorityClass(this) != _IDLE:
        api.kernel32.SetPriorityClass(this, _IDLE if niceness >= 10 else _BELOW_NORMAL)


def on_battery() -> Callable[[], bool] | None:
    """Return a function that tells whether the machine runs on battery.

    Raises LookupError, in words, if there is no battery.
    """
    if _power().battery in (_NO_BATTERY, _UNKNOWN):
        raise LookupError("Windows shows no battery in this machine")
    return lambda: _power().on_line == 0


def _power() -> _Power:
    found = _Power()
    api.check(api.kernel32.GetSystemPowerStatus(ctypes.byref(found)))
    return found
