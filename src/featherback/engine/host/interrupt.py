"""Stopping at a safe point when a signal asks for it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from featherback.core import signals
from featherback.core.signals import Handler, handle

_SIGNALS = signals.ENDING


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


def _handle(handler: Handler, signals: Collection[signal.Signals] = _SIGNALS) -> dict[signal.Signals, Any]:
    """Install `handler` for the signals that are not ignored. Returns the previous handlers."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return handle(handler, signals)


def _restore(before: dict[signal.Signals, Any]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)
