"""The summary of a run: what it took, and its losses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from featherback.core.decode import Amount, Count, Number
from featherback.errors import FeatherbackError


@dataclass(frozen=True)
class Change:
    """Measures of preferences or labels before training, and of the kept result."""

    first: Mapping[str, Number]
    kept: Mapping[str, Number]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a run took, and its losses in nats. Memory is in 10^6 bytes."""

    steps: Count
    seconds: Amount
    step_seconds: Amount  #: median
    tokens_per_second: Amount
    peak_footprint_mb: Amount
    peak_rss_mb: Amount
    predicted_footprint_mb: Amount | None = None
    predicted_rss_mb: Amount | None = None
    first_loss: Number | None = None  #: None without steps
    final_loss: Number | None = None
    early_loss: Number | None = None  #: mean of the first steps
    late_loss: Number | None = None  #: mean of the last quarter of the steps
    first_eval_loss: Number | None = None  #: None without held-out data
    final_eval_loss: Number | None = None
    best_step: Count | None = None  #: the step with the lowest held-out loss since training began
    best_eval_loss: Number | None = None
    held_out: Change | None = None  #: of preferences and labels
    training: Change | None = None  #: the same without held-out data
    repetition: Amount | None = None  #: of the sample answers, as by `outcome.repetition`
    repetition_before: Amount | None = None
    worse: bool = False  #: whether the run ended worse than it began
    recommended: Mapping[Literal["lr", "epochs"], Amount] = field(default_factory=dict)
    """Options for another run after one that ended worse."""

    def __post_init__(self) -> None:
        if (self.best_step is None) != (self.best_eval_loss is None):
            raise FeatherbackError("best_step and best_eval_loss must both be null, or both be numbers.")
