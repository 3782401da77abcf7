"""Logs to trackio: data go to its local folder (TRACKIO_DIR); `trackio show` shows them."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import trackio

from featherback.runs.callback import Callback
from featherback.runs.events import Begin, End, Evaluation, Failed, Step
from featherback.runs.loggers.scalars import scalars


class Trackio(Callback):
    """Logs a run to the trackio project "featherback"."""

    _run: Any = None

    def begin(self, event: Begin) -> None:
        with redirect_stdout(sys.stderr):  # trackio prints its path, and standard output may be read by a program
            self._run = trackio.init(
                project="featherback", name=Path(event.run).name, config=dict(event.configuration), resume="allow"
            )

    def step(self, event: Step) -> None:
        trackio.log(scalars(event), step=event.step)

    def evaluation(self, event: Evaluation) -> None:
        trackio.log(scalars(event), step=event.step)

    def end(self, event: End) -> None:
        self._finish()

    def failed(self, event: Failed) -> None:
        if self._run is not None:
            self._finish()

    def _finish(self) -> None:
        with redirect_stdout(sys.stderr):
            trackio.finish()


LOGGER = Trackio
