"""What `featherback.train` gives back."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from featherback.adapters import peft
from featherback.adapters.lora import LoRA
from featherback.models.model import Model
from featherback.training.run_directory import RunDirectory


class Run:
    """A run that has ended. Its directory is a PEFT adapter as it stands."""

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

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """A dictionary per step."""
        return list(self.directory.metrics())

    @cached_property
    def adapter(self) -> LoRA:
        """The adapter: the last one, or the one of the lowest held-out loss where there are held-out data."""
        return peft.load(self.model, self.path)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {self.status}, {self.summary['steps']} steps)"
