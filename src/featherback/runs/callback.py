"""Who is told what happens in a run: the reporters, what logs elsewhere, and what a user passes to `fb.train`."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from featherback.errors import FeatherbackError
from featherback.runs.events import Begin, End, Evaluation, Event, Failed, Note, Paused, Resumed, Sample, Saved, Step


class Callback:
    """Every event has a method, which does nothing. They run between the steps, in the process that trains."""

    def begin(self, event: Begin) -> None:
        """Before the first step."""

    def step(self, event: Step) -> None:
        """After each optimiser step."""

    def evaluation(self, event: Evaluation) -> None:
        """After each measurement of the held-out loss."""

    def saved(self, event: Saved) -> None:
        """After each checkpoint."""

    def paused(self, event: Paused) -> None:
        """Again and again while the run waits."""

    def resumed(self, event: Resumed) -> None:
        """When it waits no longer."""

    def sample(self, event: Sample) -> None:
        """For each of --samples, when a run has finished."""

    def note(self, event: Note) -> None:
        """Something a person should know."""

    def failed(self, event: Failed) -> None:
        """In place of `end` where the run goes wrong."""

    def end(self, event: End) -> None:
        """When the run is over and its directory complete."""

    def tell(self, event: Event) -> None:
        """Call the method of this event."""
        getattr(self, event.name)(event)


class Together(Callback):
    """Several callbacks, told in this order."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self._callbacks = tuple(callbacks)

    def tell(self, event: Event) -> None:
        for callback in self._callbacks:
            callback.tell(event)


class Guarded(Callback):
    """A callback that is not ours: what it raises becomes a FeatherbackError, which ends the run."""

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
                f"What the run had saved is kept; mend the callback, or leave it out, and resume."
            ) from error


def tell_failure(callback: Callback, step: int, error: BaseException) -> None:
    """Tell that the run went wrong. What goes wrong in telling is dropped: `error` is what the user must hear of."""
    with suppress(Exception):
        callback.tell(Failed(step, str(error) or type(error).__name__))
