"""Callbacks: reporters, loggers and the user's own objects, which receive the events of a run."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from featherback.errors import FeatherbackError
from featherback.runs.events import Begin, End, Evaluation, Event, Failed, Note, Paused, Resumed, Sample, Saved, Step


class Callback:
    """Base class of callbacks: one method per event, which does nothing here. Override the ones you need.

    They are called between steps, in the training process.
    """

    def begin(self, event: Begin) -> None:
        """Called before the first step."""

    def step(self, event: Step) -> None:
        """Called after each optimiser step."""

    def evaluation(self, event: Evaluation) -> None:
        """Called after each measurement of the held-out loss."""

    def saved(self, event: Saved) -> None:
        """Called after each checkpoint."""

    def paused(self, event: Paused) -> None:
        """Called repeatedly while the run is paused."""

    def resumed(self, event: Resumed) -> None:
        """Called when a paused run goes on."""

    def sample(self, event: Sample) -> None:
        """Called for each of `--samples` after the last step."""

    def note(self, event: Note) -> None:
        """Called with a message for the user."""

    def failed(self, event: Failed) -> None:
        """Called instead of `end` if the run fails."""

    def end(self, event: End) -> None:
        """Called when the run is over and its directory is complete."""

    def tell(self, event: Event) -> None:
        """Call the method for this event."""
        getattr(self, event.name)(event)


class CallbackList(Callback):
    """Passes each event to several callbacks, in this order."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self._callbacks = tuple(callbacks)

    def tell(self, event: Event) -> None:
        for callback in self._callbacks:
            callback.tell(event)


class GuardedCallback(Callback):
    """Wraps a callback from outside Featherback: an exception in it becomes a FeatherbackError, which ends the run."""

    def __init__(self, callback: Callback) -> None:
        self._callback = callback

    def tell(self, event: Event) -> None:
        try:
            self._callback.tell(event)
        except FeatherbackError:
            raise
        except Exception as error:
            step = getattr(event, "step", None)
            where = "" if step is None else f" at step {step}"
            raise FeatherbackError(
                f"The callback {type(self._callback).__name__} failed in {event.name}(){where}: "
                f"{type(error).__name__}: {error}. "
                f"The last checkpoint is kept. Correct or remove the callback, and resume the run."
            ) from error


def report_failure(callback: Callback, step: int, error: BaseException) -> None:
    """Report that the run failed with `error`. Exceptions of the callback are ignored, so they do not hide `error`."""
    with suppress(Exception):
        callback.tell(Failed(step, str(error) or type(error).__name__))
