"""Stop at a clean place when asked to."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, NoReturn

from featherback.core import signals

_SIGNALS = signals.ENDING
INTERRUPTED = 130
"""Exit status of a program that a signal ended."""

_MOST_HELD = 4096

Handler = Callable[[int, FrameType | None], None]


class StoppedError(Exception):
    """Work was left before its end, because a signal asked for it."""


class Interrupt:
    """While entered, a first SIGINT, SIGTERM or SIGHUP only sets `requested`; a second raises KeyboardInterrupt.

    A signal that was ignored stays so (`nohup`). Outside the main thread, where Python delivers none, it does nothing.
    `held`: what `held_signals` gave the program that this process was before; those that came meanwhile count.
    `signals`: those that are meant, if not all three.
    """

    def __init__(self, held: int | None = None, signals: Collection[signal.Signals] = _SIGNALS) -> None:
        self.requested = False
        self._held, self._signals = held, signals
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupt:
        self._before = _handle(self._on_signal, self._signals)
        held, self._held = self._held, None
        if held is not None:
            _let_come(held, self._on_signal)
        return self

    def check(self) -> None:
        """StoppedError if a signal came."""
        if self.requested:
            raise StoppedError

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        _restore(self._before)


@contextmanager
def ended_by_signals(held: int | None = None) -> Iterator[None]:
    """While entered, SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does, so that what was begun is undone.

    `held`: as for `Interrupt`.
    """

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = _handle(end)
    try:
        if held is not None:
            _let_come(held, end)
        yield
    finally:
        _restore(before)


def exit_with(program: Callable[[], int]) -> NoReturn:
    """Run a program, and end this process with the status that it gives, or 130 if one of the signals came first.

    It is the program's from the first line to the last: signals that were blocked until now come inside, and once its
    status is known they are ignored, also while the interpreter ends. Those that were ignored stay so. What the
    program was before (`held_signals`) is for the program to take up: its signals stay blocked.
    """
    over, status = False, INTERRUPTED

    def end(number: int, frame: FrameType | None) -> None:
        if not over:
            raise KeyboardInterrupt

    before = _handle(end)
    try:
        status = program()
    except KeyboardInterrupt:
        pass
    finally:
        over = True
        for number in before:
            signal.signal(number, signal.SIG_IGN)
    raise SystemExit(status)


@contextmanager
def held_signals() -> Iterator[int]:
    """While entered, signals wait for the program that takes this one's place by `exec`, which gets the number given.

    Blocked signals outlast `exec`. Threads of our own never get one (`signals.waiting`); if a library's takes one, it
    writes its number to a pipe, the end of which is what is given. If there is no `exec` after all, the signals come at
    the end.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    os.set_inheritable(reader, True)
    try:
        with signals.waiting():
            before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
            try:
                yield reader
            finally:
                signal.set_wakeup_fd(before)
    finally:
        os.close(reader)
        os.close(writer)


def _let_come(held: int, handler: Handler) -> None:
    """Have `handler` called for the signals that `held_signals` held, and let the next ones through."""
    came = os.read(held, _MOST_HELD)  # never waits: the other end closed with the program before
    os.close(held)
    try:
        for number in sorted(set(came) & set(_SIGNALS)):
            handler(number, None)
    finally:
        signals.unblock()


def _handle(handler: Handler, signals: Collection[signal.Signals] = _SIGNALS) -> dict[signal.Signals, Any]:
    """Have `handler` called for those of the signals that are not ignored; what was there before."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    wanted = [number for number in signals if signal.getsignal(number) is not signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in wanted}


def _restore(before: dict[signal.Signals, Any]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)
