"""Signals that end a program: Ctrl-C, Ctrl-Break, and `terminate` of this process itself.

Windows blocks no signals. Python also hears of a window that is closed, and of the end of the session, as Ctrl-Break.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Collection

assert sys.platform == "win32"


ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGBREAK)
INTERRUPTED = 130
"""Exit status of a program that was ended by a signal."""
TOO_LONG = 1816
"""Exit status of a process that used more CPU time than it may: ERROR_NOT_ENOUGH_QUOTA."""
PAGE_LOST = 0xC0000006
"""Exit status of a process that read a page of a mapped file that is gone: STATUS_IN_PAGE_ERROR."""
KILLED = (0xC0000017, 0xC0000409, 3)
"""Exit statuses of processes that a library or the system has ended, perhaps because memory ran out."""
NO_MEMORY = (*KILLED, 0xC0000005)
_NAMES = {0xC0000005: "an access violation", 0xC0000006: "a page that cannot be read", 0xC0000017: "a lack of memory"}


def block() -> set[int]:
    """Do nothing."""
    return set()


def unblock() -> None:
    """Do nothing."""


def restore(before: Collection[int]) -> None:
    """Do nothing."""


def ignore_interrupts() -> None:
    """Let another process handle Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGBREAK, signal.SIG_IGN)


def name_of(status: int) -> str | None:
    """Return the name of what has ended a process, or None if it has chosen its exit status."""
    return _NAMES.get(status, f"the error {status:#x}") if status >= 0xC0000000 else None
