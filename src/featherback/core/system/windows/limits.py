"""Limits of this process's memory and CPU time: a job object that holds this process alone."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import time
from collections.abc import Sequence
from ctypes import wintypes

from featherback.core.system.windows import api

assert sys.platform == "win32"


_PROCESS_TIME, _PROCESS_MEMORY, _KILL_ON_CLOSE = 0x2, 0x100, 0x2000
_EXTENDED = 9  # JobObjectExtendedLimitInformation
_UNITS = 10_000_000  # of 100 ns in a second


class _Limits(ctypes.Structure):
    """JOBOBJECT_EXTENDED_LIMIT_INFORMATION."""

    _fields_ = (
        ("process_time", ctypes.c_int64),
        ("job_time", ctypes.c_int64),
        ("flags", wintypes.DWORD),
        ("least_set", ctypes.c_size_t),
        ("most_set", ctypes.c_size_t),
        ("processes", wintypes.DWORD),
        ("affinity", ctypes.c_size_t),
        ("priority", wintypes.DWORD),
        ("scheduling", wintypes.DWORD),
        ("counters", ctypes.c_uint64 * 6),
        ("process_memory", ctypes.c_size_t),
        ("job_memory", ctypes.c_size_t),
        ("peak_process", ctypes.c_size_t),
        ("peak_job", ctypes.c_size_t),
    )


class _Job:
    """The job object, which is made with the first limit."""

    def __init__(self) -> None:
        self._handle = 0
        self._limits = _Limits()

    def set(self, flag: int, **values: int | None) -> None:
        """Set a limit. A value of None removes it."""
        for name, value in values.items():
            setattr(self._limits, name, value or 0)
            self._limits.flags = self._limits.flags | flag if value else self._limits.flags & ~flag
        if not self._handle:
            self._handle = api.kernel32.CreateJobObjectW(None, None) or 0
            api.check(api.kernel32.AssignProcessToJobObject(self._handle, api.kernel32.GetCurrentProcess()))
        limits = ctypes.byref(self._limits)
        api.check(api.kernel32.SetInformationJobObject(self._handle, _EXTENDED, limits, ctypes.sizeof(_Limits)))


_job = _Job()


def address_space() -> int | None:
    """Return the bytes of memory that the system has promised to this process, which `limit_memory` limits."""
    return status("VmData")


def limit_memory(nbytes: int | None) -> None:
    """Limit the memory that the system promises to this process; None: no limit."""
    _job.set(_PROCESS_MEMORY, process_memory=nbytes)


def limit_data(nbytes: int) -> None:
    """Limit the memory of this process to what it has now and `nbytes` more."""
    limit_memory(status("VmData") + nbytes)


def limit_time(seconds: float) -> None:
    """Limit the CPU time of this process from now on; 0: no limit. Beyond it, the process ends (signals.TOO_LONG)."""
    until = None if seconds == 0 else int((time.process_time() + seconds) * _UNITS)
    _job.set(_PROCESS_TIME, process_time=until)


def leave_no_core() -> None:
    """Do nothing: Windows writes no memory image unless it was told to."""


def limited(command: Sequence[str], seconds: int, memory: int, file: int) -> list[str]:
    """Return the words of a command that limits CPU time and memory, and runs `command`, which ends with it.

    Windows does not limit the bytes of files.
    """
    return [sys.executable, "-P", "-m", __name__, str(seconds), str(memory), *command]


def _run(seconds: str, memory: str, *command: str) -> int | str:
    """Run a command within limits; return its exit status, or why it could not be run."""
    _job.set(_KILL_ON_CLOSE, kills=True)
    limit_memory(int(memory))
    limit_time(float(seconds))
    try:
        return subprocess.run(command, check=False).returncode
    except OSError as error:
        return f"{command[0]}: {error.strerror}"


def status(name: str) -> int:
    """Return a size of this process, by the name that Linux has for it."""
    counters = api.memory_of()
    sizes = {"VmData": counters.pagefile, "VmRSS": counters.working_set, "VmHWM": counters.peak_working_set}
    return int(sizes[name])


if __name__ == "__main__":
    sys.exit(_run(*sys.argv[1:]))
