"""What happens in a run. `featherback train --json` prints each as a line: its name, and these fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Event:
    """Something that happened."""

    @property
    def name(self) -> str:
        """What it is called in JSON, and the method of a callback that is told of it."""
        return type(self).__name__.lower()

    def values(self) -> dict[str, Any]:
        """Its fields, which JSON can hold."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class Begin(Event):
    """The run in the directory `run` is at `step` of `steps`: more than 0 if it is resumed."""

    run: str
    steps: int
    step: int
    memory_mb: float | None  #: the budget (10^6 bytes resident); None: none was named
    predicted_rss_mb: float | None
    configuration: Mapping[str, Any]  #: the run's options, as in run.json


@dataclass(frozen=True)
class Step(Event):
    """An optimiser step ended. Its fields are its line of metrics.jsonl."""

    step: int  #: from 1
    loss: float  #: mean of the step's trained tokens, nats
    lr: float
    grad_norm: float  #: before clipping
    tokens: int  #: trained or not
    seconds: float
    footprint_mb: float  #: memory that only this process can free, in 10^6 bytes
    rss_mb: float  #: resident memory, with mapped file pages


@dataclass(frozen=True)
class Evaluation(Event):
    """The held-out loss after `step` is known."""

    step: int
    eval_loss: float  #: nats per token
    best: bool  #: the lowest after training began: the run directory has this adapter
    mean: bool = False  #: measured of the mean of the steps' adapters, and not of this step's


@dataclass(frozen=True)
class Saved(Event):
    """There is a checkpoint, from which the run can be resumed."""

    step: int
    path: str


@dataclass(frozen=True)
class Paused(Event):
    """The run waits. Told again and again, with the reason as it is then, until Resumed."""

    reason: str


@dataclass(frozen=True)
class Resumed(Event):
    """The run waits no longer."""


@dataclass(frozen=True)
class Sample(Event):
    """What the model makes of an example as it was, and as it is after the run."""

    prompt: str  #: with its control tokens
    expected: str  #: what follows in the data
    before: str
    after: str


@dataclass(frozen=True)
class Note(Event):
    """Something a person should know."""

    text: str


@dataclass(frozen=True)
class Failed(Event):
    """The run went wrong after `step`; the error itself is raised when this has been told."""

    step: int
    reason: str


@dataclass(frozen=True)
class End(Event):
    """The run is over: "finished", "stopped early" or "interrupted". `summary` is that of run.json."""

    status: str
    summary: Mapping[str, Any]
