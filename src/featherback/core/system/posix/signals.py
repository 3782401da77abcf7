"""Signals that end a program, and what the exit statuses of processes mean that a signal has ended."""

from __future__ import annotations

import signal
from collections.abc import Collection

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
INTERRUPTED = 130
"""Exit status of a program that was ended by a signal."""
TOO_LONG = -signal.SIGPROF
"""Exit status of a process that used more CPU time than it may (`limits`)."""
PAGE_LOST = -signal.SIGBUS
"""Exit status of a process that read a page of a mapped file that is gone."""
NO_MEMORY = (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS)
"""Exit statuses of processes whose memory ran out while a library worked."""
KILLED = (-signal.SIGABRT, -signal.SIGKILL)
"""Exit statuses of processes that a library or the system has ended, perhaps because memory ran out."""


def block() -> set[int]:
    """Block the ending signals in this thread and in threads that it starts. Returns what was blocked before."""
    return signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)


def unblock() -> None:
    """Let the ending signals reach this thread."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


def restore(before: Collection[int]) -> None:
    """Block these signals, and no others."""
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_interrupts() -> None:
    """Let another process handle Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def name_of(status: int) -> str | None:
    """Return the name of what has ended a process, or None if it has chosen its exit status."""
    return signal.Signals(-status).name if status < 0 else None
