"""The signals that end a program: blocking, unblocking and handling them."""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

from featherback.core.system import signals as system_signals

Handler = Callable[[int, FrameType | None], None]
ENDING, INTERRUPTED = system_signals.ENDING, system_signals.INTERRUPTED
block, unblock = system_signals.block, system_signals.unblock


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
        system_signals.restore(before)


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
