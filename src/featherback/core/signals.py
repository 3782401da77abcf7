"""Blocking and unblocking the signals that end a program."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 130
"""Exit status of a program that was ended by a signal."""

ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


def block() -> set[int]:
    """Block the ending signals in this thread and in threads that it starts. Returns what was blocked before."""
    return signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)


def unblock() -> None:
    """Let the ending signals reach this thread."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


@contextmanager
def waiting() -> Iterator[None]:
    """Block the ending signals within the context.

    Threads started inside never receive them. Otherwise a thread could receive a signal while the main thread, which
    handles it, goes on waiting for the system.
    """
    before = block()
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
