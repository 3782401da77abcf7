"""Stopping at a safe point when a signal asks for it."""

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
"""Exit status of a program that was ended by a signal."""

_MOST_HELD = 4096

Handler = Callable[[int, FrameType | None], None]


class StoppedError(Exception):
    """Raised to leave work before its end, because a signal asked for it."""


class Interrupt:
    """Within the context, a first SIGINT, SIGTERM or SIGHUP only sets `requested`; a second raises KeyboardInterrupt.

    A signal that was ignored stays ignored (`nohup`). Outside the main thread, where Python delivers no signals, it
    does nothing. `held` is the value that `held_signals` gave to this process's previous program: signals that arrived
    in between count. `signals` are those to handle, by default all three.
    """

    def __init__(self, held: int | None = None, signals: Collection[signal.Signals] = _SIGNALS) -> None:
        self.requested = False
        self._held, self._signals = held, signals
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupt:
        self._before = _handle(self._on_signal, self._signals)
        held, self._held = self._held, None
        if held is not None:
            _deliver(held, self._on_signal)
        return self

    def check(self) -> None:
        """Raise StoppedError if a signal has arrived."""
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
    """Within the context, SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does, so that cleanup code runs.

    `held`: as for `Interrupt`.
    """

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = _handle(end)
    try:
        if held is not None:
            _deliver(held, end)
        yield
    finally:
        _restore(before)


def exit_with(program: Callable[[], int]) -> NoReturn:
    """Run a program, and end this process with its status, or with 130 if a signal arrived first.

    Signals that were blocked until now arrive inside the program. Once the program's status is known, signals are
    ignored, also while the interpreter shuts down. Signals that were ignored stay ignored. If another program ran in
    this process before (`held_signals`), its signals stay blocked until the program handles them.
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
    """Within the context, keep signals for the program that replaces this one by `exec`. Yields a number to pass to it.

    Blocked signals survive `exec`. Threads of our own never receive them (`signals.waiting`). If a library's thread
    receives one, its number is written to a pipe, and the yielded number is the descriptor of the pipe's reading end.
    Without an `exec` the signals arrive when the context ends.
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


def _deliver(held: int, handler: Handler) -> None:
    """Call `handler` for the signals that `held_signals` kept, and let further ones through."""
    came = os.read(held, _MOST_HELD)  # never waits, because the writing end closed with the previous program
    os.close(held)
    try:
        for number in sorted(set(came) & set(_SIGNALS)):
            handler(number, None)
    finally:
        signals.unblock()


def _handle(handler: Handler, signals: Collection[signal.Signals] = _SIGNALS) -> dict[signal.Signals, Any]:
    """Install `handler` for the signals that are not ignored. Returns the previous handlers."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    wanted = [number for number in signals if signal.getsignal(number) is not signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in wanted}


def _restore(before: dict[signal.Signals, Any]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)
