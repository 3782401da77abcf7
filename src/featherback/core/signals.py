"""The signals that end a program."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


def block() -> set[int]:
    """Let them wait in this thread, and never come to threads that it begins; what was blocked before."""
    return signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)


def unblock() -> None:
    """Let them come to this thread."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


@contextmanager
def waiting() -> Iterator[None]:
    """While entered, they wait. A thread that is begun inside never gets one: where this process gives way to another
    program by `exec`, it would be gone with the signal that it had just taken."""
    before = block()
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
