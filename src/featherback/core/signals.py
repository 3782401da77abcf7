"""Blocking and unblocking the signals that end a program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from featherback.core.ended import INTERRUPTED as INTERRUPTED
from featherback.core.system import signals

ENDING = signals.ENDING
block, unblock = signals.block, signals.unblock


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
        signals.restore(before)
