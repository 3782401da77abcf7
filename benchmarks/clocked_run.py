"""`python -m benchmarks.clocked_run RUN STEPS SECONDS`: train a prepared run until both are reached.

It ends with a measurement of the held-out loss. Prints the most bytes that the run's directory held.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from featherback.engine.host.interrupt import Interrupt
from featherback.runs.callback import Callback
from featherback.runs.events import Evaluation, Saved, Step
from featherback.runs.run_directory import RunDirectory
from featherback.runs.trainer import train_run


class Clock(Callback):
    """Stops a run after the first measurement that has `steps` steps and `seconds` of their time behind it."""

    def __init__(self, folder: Path, steps: int, seconds: float, interrupt: Interrupt) -> None:
        self._folder, self._steps, self._left, self._interrupt = folder, steps, seconds, interrupt
        self.disk = 0  # bytes, the most so far

    def step(self, event: Step) -> None:
        self._left -= event.seconds
        self._look()

    def evaluation(self, event: Evaluation) -> None:
        self._look()
        if event.step >= self._steps and self._left <= 0:
            self._interrupt.requested = True

    def saved(self, event: Saved) -> None:
        self._look()

    def _look(self) -> None:
        self.disk = max(self.disk, sum(_sizes(self._folder)))


def _sizes(folder: Path) -> Iterator[int]:
    """Bytes of all files under a folder. A file with several names counts once."""
    found = [path.stat() for path in folder.rglob("*") if path.is_file()]
    yield from {each.st_ino: each.st_size for each in found}.values()


def main(directory: str, steps: str, seconds: str) -> None:
    """As the module says."""
    run, interrupt = RunDirectory.open(directory), Interrupt()
    clock = Clock(run.path, int(steps), float(seconds), interrupt)
    train_run(run, clock, interrupt=interrupt)
    print(clock.disk)


if __name__ == "__main__":
    main(*sys.argv[1:])
