"""The result of `featherback.train`, or of an earlier run (`featherback.open_run`)."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from featherback.errors import FeatherbackError
from featherback.exports import formats
from featherback.exports.base_model import model_path
from featherback.models.loader import load
from featherback.models.model import Model
from featherback.runs.outcome import held_out_losses, is_worse
from featherback.runs.run_directory import RunDirectory
from featherback.runs.summary import Summary


class Run:
    """A run that has ended. PEFT can load its directory as an adapter; with `train="full"` it contains the model."""

    def __init__(self, directory: RunDirectory, model: Model | None = None, kind: type[Model] = Model) -> None:
        """`model`: the base model; None: the one that the run records, which is opened, as a `kind`, when needed."""
        self.directory = directory
        self._model, self._kind = model, kind if model is None else type(model)

    @cached_property
    def model(self) -> Model:
        """The base model. Raises FeatherbackError if it is not on this machine any more."""
        if self._model is not None:
            return self._model
        return load(model_path(self.path, None), self.directory.config.quantize, kind=self._kind)

    @property
    def path(self) -> Path:
        """The path of the run directory."""
        return self.directory.path

    @property
    def status(self) -> str:
        """The status: "finished" or "stopped early"."""
        return self.directory.record.status

    @property
    def summary(self) -> Summary:
        """The summary of run.json: peak memory, speed, first and last losses.

        Raises FeatherbackError if the run has not ended.
        """
        if (found := self.directory.record.summary) is None:
            raise FeatherbackError(f"{self.path} has no summary yet; its status is: {self.status}.")
        return found

    @property
    def worse(self) -> bool:
        """Whether the result is worse than the model before training, and should not be used.

        That is the case if the held-out loss of the kept result is higher than before training or, without held-out
        data, if the training loss rose clearly. `summary.recommended` has options for another run.
        """
        return is_worse(self.directory.record.summary)

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The metrics of each step, as dictionaries with the fields of `events.Step`."""
        return list(self.directory.metrics())

    @cached_property
    def adapter(self) -> formats.SavedAdapter:
        """The kept adapter: the one with the lowest held-out loss or, without held-out data, the mean over all steps.

        With `keep="last"` it is never a mean. Raises FeatherbackError if the run trained the model itself; see
        `trained_model`.
        """
        return formats.load(self.model, self.adapter_path)

    @property
    def adapter_path(self) -> Path:
        """The place of the kept adapter. Raises FeatherbackError if the run trained the model itself."""
        if self.directory.config.train == "full":
            raise FeatherbackError(f"{self.path} trained the model itself, so it has no adapter; use `trained_model`.")
        return self.path

    @cached_property
    def trained_model(self) -> Model:
        """The trained model, chosen by held-out loss like `adapter`.

        Raises FeatherbackError if the run trained an adapter.
        """
        if self.directory.config.train == "lora":
            raise FeatherbackError(f"{self.path} trained an adapter, not the model; use `adapter`.")
        return load(self.path, kind=self._kind)

    def __repr__(self) -> str:
        summary = self.directory.record.summary
        losses = held_out_losses(summary)
        if losses is None and summary is not None and summary.final_loss is not None:
            losses = f"loss {summary.first_loss:.4f} -> {summary.final_loss:.4f}"
        parts = (repr(str(self.path)), self.status, summary and f"{summary.steps} steps", losses)
        return f"Run({', '.join(part for part in parts if part)})"
