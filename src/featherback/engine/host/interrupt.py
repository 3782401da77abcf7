"""Stopping at a safe point when a signal asks for it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, NoReturn

from featherback.core import signals
from featherback.core.signals import INTERRUPTED

_SIGNALS = signals.ENDING
Handler = Callable[[int, FrameType | None], None]


class StoppedError(Exception):
    """Raised to leave work before its end, because a signal asked for it."""


class Interrupt:
    """Within the context, a first SIGINT, SIGTERM or SIGHUP only sets `requested`; a second raises KeyboardInterrupt.

    A signal that was ignored stays ignored (`nohup`). Outside the main thread, where Python delivers no signals, it
    does nothing. `earlier`: whether a signal has arrived before. `signals` are those to handle, by default all three.
    """

    def __init__(
        self, earlier: Callable[[], bool] = lambda: False, signals: Collection[signal.Signals] = _SIGNALS
    ) -> None:
        self.requested = False
        self._earlier, self._signals = earlier, signals
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupt:
        self._before = _handle(self._on_signal, self._signals)
        self.requested = self.requested or self._earlier()
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
def ended_by_signals() -> Iterator[None]:
    """Within the context, SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does, so that cleanup code runs."""

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = _handle(end)
    try:
        yield
    finally:
        _restore(before)


def exit_with(program: Callable[[], int]) -> NoReturn:
    """Run a program, and end this process with its status, or with 130 if a signal arrived first.

    Signals that were blocked until now arrive inside the program. Once the program's status is known, signals are
    ignored, also while the interpreter shuts down. Signals that were ignored stay ignored.
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


def _handle(handler: Handler, signals: Collection[signal.Signals] = _SIGNALS) -> dict[signal.Signals, Any]:
    """Install `handler` for the signals that are not ignored. Returns the previous handlers."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    wanted = [number for number in signals if signal.getsignal(number) is not signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in wanted}


def _restore(before: dict[signal.Signals, Any]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)
