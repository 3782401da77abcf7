"""The events of a run. `featherback train --json` prints each as one line: its name and its fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from featherback.core.decode import encode
from featherback.runs.summary import Summary


@dataclass(frozen=True)
class Event:
    """Base class of the events."""

    @property
    def name(self) -> str:
        """The event's name in JSON, and the name of the callback method that receives it."""
        return type(self).__name__.lower()

    def values(self) -> dict[str, Any]:
        """Return the fields by name; all values can be written as JSON."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


def _with_measures(values: dict[str, Any]) -> dict[str, Any]:
    """Replace the entry "measures" by its entries."""
    measures = values.pop("measures")
    return {**values, **measures}


@dataclass(frozen=True)
class Begin(Event):
    """The run in the directory `run` begins at `step` of `steps`; `step` is more than 0 if the run is resumed."""

    run: str
    steps: int
    step: int
    memory_mb: float | None  #: the budget for resident memory, in 10^6 bytes; None without one
    predicted_rss_mb: float | None
    configuration: Mapping[str, Any]  #: the run's options, as in run.json


@dataclass(frozen=True)
class Step(Event):
    """An optimiser step ended. The fields are also its line in metrics.jsonl."""

    step: int  #: from 1
    loss: float  #: mean over the step's supervised tokens, in nats
    lr: float
    grad_norm: float  #: before clipping
    tokens: int  #: all tokens of the step, supervised or not
    seconds: float
    footprint_mb: float  #: private memory of this process, in 10^6 bytes
    rss_mb: float  #: resident memory including mapped file pages, in 10^6 bytes
    measures: Mapping[str, float] = field(default_factory=dict)
    """Fields in JSON. Preferences: chosen_reward, rejected_reward, margin and accuracy (0 to 1). Labels: accuracy and
    macro_f1 (0 to 1). The model's own answers: reward, reward_std (within a prompt), equal (share of prompts whose
    answers all have the same reward), answer_length (tokens), ended (share), repetition (share), entropy (nats per
    token), and clipped (share of tokens). With a teacher: next_token_loss, and divergence from the teacher, both in
    nats per supervised token."""

    def values(self) -> dict[str, Any]:
        return _with_measures(super().values())


@dataclass(frozen=True)
class Judged:
    """An answer that the model wrote to a held-out prompt, with its reward. Both texts may be cut."""

    prompt: str
    answer: str
    reward: float


@dataclass(frozen=True)
class Evaluation(Event):
    """The held-out loss was measured after `step`."""

    step: int
    eval_loss: float  #: nats per token
    best: bool  #: lowest since training began; the run directory now holds this adapter
    mean: bool = False  #: measured with the mean of the steps' adapters, not with this step's
    measures: Mapping[str, float] = field(default_factory=dict)  #: as in Step
    answers: Sequence[Judged] = ()  #: the first answers to held-out prompts, if the model writes them itself

    def values(self) -> dict[str, Any]:
        values = _with_measures(super().values())
        answers = values.pop("answers")
        return {**values, **({"answers": [encode(each) for each in answers]} if answers else {})}


@dataclass(frozen=True)
class Saved(Event):
    """A checkpoint was written, from which the run can be resumed."""

    step: int
    path: str


@dataclass(frozen=True)
class Paused(Event):
    """The run is paused. Sent repeatedly, with the current reason, until Resumed."""

    reason: str


@dataclass(frozen=True)
class Resumed(Event):
    """The run is no longer paused."""


@dataclass(frozen=True)
class Sample(Event):
    """The model's answers to an example before and after training."""

    prompt: str  #: including special tokens
    expected: str  #: the answer in the data
    before: str
    after: str


@dataclass(frozen=True)
class Note(Event):
    """A message for the user."""

    text: str


@dataclass(frozen=True)
class Failed(Event):
    """The run failed after `step`. The error itself is raised after this event."""

    step: int
    reason: str


@dataclass(frozen=True)
class End(Event):
    """The run is over, with `status` "finished", "stopped early" or "interrupted". `summary` is the one in run.json."""

    status: str
    summary: Summary

    def values(self) -> dict[str, Any]:
        return encode(self)
