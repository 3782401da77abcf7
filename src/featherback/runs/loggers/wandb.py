"""Logs to Weights & Biases, offline, in the run's folder `logs/wandb`. Only `wandb sync` sends the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import wandb

from featherback.core.decode import encode
from featherback.runs.callback import Callback
from featherback.runs.events import Begin, End, Evaluation, Failed, Step
from featherback.runs.loggers.scalars import log_folder, scalars


class WandB(Callback):
    """Logs a run to the W&B project "featherback". W&B starts a separate process, whose memory is not budgeted."""

    _run: Any = None

    def begin(self, event: Begin) -> None:
        self._run = wandb.init(
            mode="offline",
            project="featherback",
            name=Path(event.run).name,
            dir=str(log_folder(event)),
            config=dict(event.configuration),
            settings=wandb.Settings(silent=True, console="off"),
        )

    def step(self, event: Step) -> None:
        self._run.log(scalars(event), step=event.step)

    def evaluation(self, event: Evaluation) -> None:
        self._run.log(scalars(event), step=event.step)

    def end(self, event: End) -> None:
        self._run.summary.update(encode(event.summary))
        self._run.finish()

    def failed(self, event: Failed) -> None:
        if self._run is not None:
            self._run.finish(exit_code=1)


LOGGER = WandB
