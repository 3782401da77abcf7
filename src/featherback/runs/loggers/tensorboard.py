"""Logs to TensorBoard: writes event files to the run's folder `logs/tensorboard`."""

from __future__ import annotations

from tensorboard.summary import Writer

from featherback.runs.callback import Callback
from featherback.runs.events import Begin, End, Evaluation, Failed, Step
from featherback.runs.loggers.scalars import log_folder, scalars


class TensorBoard(Callback):
    """Writes the losses of a run. `tensorboard --logdir RUN/logs/tensorboard` shows them, also during training."""

    _writer: Writer | None = None

    def begin(self, event: Begin) -> None:
        self._writer = Writer(str(log_folder(event) / "tensorboard"))

    def step(self, event: Step) -> None:
        self._log(event)

    def evaluation(self, event: Evaluation) -> None:
        self._log(event)

    def end(self, event: End) -> None:
        self._close()

    def failed(self, event: Failed) -> None:
        self._close()

    def _log(self, event: Step | Evaluation) -> None:
        assert self._writer is not None
        for name, value in scalars(event).items():
            self._writer.add_scalar(name, value, event.step)

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


LOGGER = TensorBoard
