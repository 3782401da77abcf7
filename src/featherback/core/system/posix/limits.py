"""Limits of this process's memory and CPU time."""

from __future__ import annotations

import resource
import signal
import sys
from collections.abc import Sequence

_LIMITED = """
import os, resource, sys
seconds, memory, file, *command = sys.argv[1:]
for kind, limit in (("CPU", int(seconds)), ("AS", int(memory)), ("FSIZE", int(file)), ("CORE", 0)):
    kind = getattr(resource, "RLIMIT_" + kind)
    most = resource.getrlimit(kind)[1]
    limit = limit if most == resource.RLIM_INFINITY else min(limit, most)
    resource.setrlimit(kind, (limit, limit))
try:
    os.execvp(command[0], command)
except OSError as error:
    sys.exit(f"{command[0]}: {error.strerror}")
"""


def address_space() -> int | None:
    """Return the bytes of this process's address space. None where memory cannot be limited: `limit_memory`."""
    if sys.platform != "linux":
        return None
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def limit_memory(nbytes: int | None) -> None:
    """Limit this process's address space; None: as much as the system allows."""
    _limit(resource.RLIMIT_AS, nbytes)


def limit_data(nbytes: int) -> None:
    """Limit the memory of this process to what it has now and `nbytes` more, where the system can."""
    if used := status("VmData"):
        _limit(resource.RLIMIT_DATA, used + nbytes)


def limit_time(seconds: float) -> None:
    """Limit the CPU time of this process from now on; 0: no limit. Beyond it, the process ends (signals.TOO_LONG)."""
    signal.setitimer(signal.ITIMER_PROF, seconds)


def leave_no_core() -> None:
    """Write no memory image if this process is killed."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def limited(command: Sequence[str], seconds: int, memory: int, file: int) -> list[str]:
    """Return the words of a command that limits itself and becomes `command`: CPU time, and bytes of memory and files.

    A process with threads must not set limits between a fork and the program.
    """
    return [sys.executable, "-I", "-S", "-c", _LIMITED, str(seconds), str(memory), str(file), *command]


def status(name: str) -> int:
    """Return an entry of /proc/self/status in bytes; 0 on other systems than Linux."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            return next((int(line.split()[1]) * 1024 for line in file if line.startswith(f"{name}:")), 0)
    except OSError:
        return 0


def _limit(kind: int, nbytes: int | None) -> None:
    _, most = resource.getrlimit(kind)
    if nbytes is None:
        limit = most
    else:
        limit = nbytes if most == resource.RLIM_INFINITY else min(nbytes, most)
    resource.setrlimit(kind, (limit, most))
