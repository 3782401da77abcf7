"""What the passes before training have in common: how they end early, and how their examples are counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from featherback.core.naming import argument
from featherback.core.sizes import MB

if TYPE_CHECKING:
    from featherback.core.terminal import Progress
    from featherback.runs.record import Pass
    from featherback.runs.run_directory import RunDirectory


@contextmanager
def undone_on_failure(run: RunDirectory) -> Iterator[None]:
    """If a pass fails, delete everything that was made for a new run. A resumed run is only released."""
    try:
        yield
    except BaseException:
        if run.is_new:
            run.delete()
        else:
            run.release()
        raise


@contextmanager
def resumable(run: RunDirectory, note: Callable[[str], None]) -> Iterator[None]:
    """If the pass ends early, release the run. If a signal ended it, the run can be resumed, which a note says.

    A new run is deleted if the pass failed before it stored anything.
    """
    is_new = run.is_new
    try:
        yield
    except KeyboardInterrupt:
        run.update(status="interrupted")
        again = argument("resume", True)
        note(f"interrupted before the first step; to start {run.path}, repeat the command with {again}")
        run.release()
        raise
    except BaseException:
        if is_new and run.is_untrained:
            run.delete()
        else:
            run.release()
        raise


class Counted:
    """Counts the examples of a pass, shows how long it still takes, and returns what the run records of it."""

    def __init__(self, shown: Progress, total: int) -> None:
        self._shown, self.total, self.done = shown, total, 0
        self._began = time.monotonic()

    def add(self, count: int) -> None:
        """Count finished examples."""
        self.done += count
        if self._shown.is_due():
            left = (time.monotonic() - self._began) * (self.total - self.done) / max(1, self.done)
            self._shown.show(f"{self.done} of {self.total} examples, {left:.0f} s left")

    def taken(self) -> Pass:
        """Return the examples, the seconds and the peak memory of this process."""
        from featherback.runs.account import own_peak
        from featherback.runs.record import Pass

        return Pass(examples=self.total, seconds=time.monotonic() - self._began, peak_rss_mb=own_peak() / MB)
