"""The signals that end a program: blocking, unblocking and handling them."""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

Handler = Callable[[int, FrameType | None], None]

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


def handle(handler: Handler, signals: Collection[signal.Signals] = ENDING) -> dict[signal.Signals, Any]:
    """Install `handler` for the signals that are not ignored. Returns the previous handlers."""
    wanted = [number for number in signals if signal.getsignal(number) is not signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in wanted}


def exit_with(program: Callable[[], int]) -> NoReturn:
    """Run a program, and end this process with its status, or with 130 if a signal arrived first.

    Signals that were blocked until now arrive inside the program. Once the program's status is known, signals are
    ignored, also while the interpreter shuts down. Signals that were ignored stay ignored.
    """
    over, status = False, INTERRUPTED

    def end(number: int, frame: FrameType | None) -> None:
        if not over:
            raise KeyboardInterrupt

    before = handle(end)
    try:
        status = program()
    except KeyboardInterrupt:
        pass
    finally:
        over = True
        for number in before:
            signal.signal(number, signal.SIG_IGN)
    raise SystemExit(status)
