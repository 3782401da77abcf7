"""What `featherback.train` gives back."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from featherback.errors import FeatherbackError
from featherback.exports import formats
from featherback.models.loader import load
from featherback.models.lora import Adapter
from featherback.models.model import Model
from featherback.runs.outcome import held_out, is_worse
from featherback.runs.run_directory import RunDirectory


class Run:
    """A run that has ended. Its directory is a PEFT adapter as it stands, or holds the model that it trained."""

    def __init__(self, directory: RunDirectory, model: Model) -> None:
        self.directory = directory
        self.model = model

    @property
    def path(self) -> Path:
        """The run directory."""
        return self.directory.path

    @property
    def status(self) -> str:
        """ "finished" or "stopped early"."""
        return str(self.directory.record["status"])

    @property
    def summary(self) -> dict[str, Any]:
        """Peak memory, speed, first and last losses."""
        return dict(self.directory.record["summary"])

    @property
    def worse(self) -> bool:
        """Whether the held-out loss of what is kept is higher than before training or, without held-out data, the
        training loss rose clearly: it should not be used, and `summary["recommended"]` has the options to train again
        with."""
        return is_worse(self.summary)

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """A dictionary per step."""
        return list(self.directory.metrics())

    @cached_property
    def adapter(self) -> Adapter:
        """The adapter that was kept: the one of the lowest held-out loss, or without held-out data the mean over all
        steps; with `keep="last"` never a mean.

        FeatherbackError if the run trained the model itself: that is `trained_model`.
        """
        if self.directory.config.train == "full":
            raise FeatherbackError(f"{self.path} trained no adapter but the model itself: it is `trained_model`.")
        return formats.load(self.model, self.path)

    @cached_property
    def trained_model(self) -> Model:
        """The model that was trained, chosen as an adapter is. FeatherbackError if the run trained an adapter."""
        if self.directory.config.train == "lora":
            raise FeatherbackError(f"{self.path} trained an adapter, not the model: it is `adapter`.")
        return load(self.path, kind=type(self.model))

    def __repr__(self) -> str:
        summary = self.summary
        losses = held_out(summary)
        if losses is None and summary.get("final_loss") is not None:
            losses = f"loss {summary['first_loss']:.4f} -> {summary['final_loss']:.4f}"
        parts = (repr(str(self.path)), self.status, f"{summary['steps']} steps", losses)
        return f"Run({', '.join(part for part in parts if part)})"
