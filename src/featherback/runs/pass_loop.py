"""What the passes before training have in common: their loop, how they end early, and how examples are counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

from featherback.core.naming import argument
from featherback.core.sizes import MB

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from featherback.core.terminal import Progress
    from featherback.data.token_file import TokenFile
    from featherback.models.model import Model
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


class Results(Protocol):
    """What a pass finds out about the examples of a token file. A pass that goes on computes only what is missing."""

    @property
    def tokens(self) -> TokenFile:
        """The token file."""

    @property
    def vocabulary(self) -> int:
        """How many tokens the method knows."""

    def missing(self, row: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return those examples of a batch whose results are missing."""

    def compute(self, row: NDArray[np.int64]) -> None:
        """Compute the results of these examples, and keep them in the file."""


def compute_missing(
    run: RunDirectory, title: str, model: Model, opened: AbstractContextManager[Sequence[Results]]
) -> Pass:
    """Compute what is missing of the results of a pass, batch by batch, and return what it took.

    `opened` opens the files with the results and the method that computes them, once the run has a scratch folder.
    """
    from featherback.core.terminal import Progress
    from featherback.data.packing import rows
    from featherback.engine.host.maps import MapWatch

    config = run.config
    config.use_machine()
    run.begin_work()
    try:
        with Progress(title) as shown, MapWatch(model.maps, model.close) as maps, opened as files:
            counted = Counted(shown, sum(len(each.tokens) for each in files))
            for each in files:
                maps.add(each.tokens.maps())
                each.tokens.check(each.vocabulary)
                for row in rows(each.tokens, config.batching, shuffle=False):
                    if (missing := each.missing(row)).size:
                        each.compute(missing)
                        maps.check()
                    each.tokens.drop_pages()
                    counted.add(row.size)
        return counted.taken()
    finally:
        run.remove_work()


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
