"""When a run has gone wrong beyond return, and why."""

from __future__ import annotations

import math

from featherback.errors import FeatherbackError
from featherback.models.finite import check_weights
from featherback.models.model import Model
from featherback.naming import argument

WORST = 10.0
"""A loss beyond this many times that of guessing (ln of the vocabulary) is no loss of a working model."""


class DivergenceError(FeatherbackError):
    """The adapter as it is must not be kept. `step`: the last step whose parameters are in doubt."""

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


def check_loss(loss: float, what: str, step: int, doubtful: int, model: Model) -> None:
    """DivergenceError if a loss (nats per token), found at `step`, is not finite or has exploded.

    It is that of the parameters after `doubtful` steps. FeatherbackError if the model itself is to blame.
    """
    check_finite(loss, what, step, doubtful, model)
    guessing = math.log(model.config.vocab_size)
    if loss > WORST * max(1.0, guessing):
        raise DivergenceError(
            f"{what} has exploded at step {step}: {loss:.4g} nats per token, where guessing has {guessing:.1f}; "
            f"lower {argument('lr')}",
            doubtful,
        )


def check_finite(value: float, what: str, step: int, doubtful: int, model: Model) -> None:
    """The same of a number that may be large."""
    if not math.isfinite(value):
        check_weights(model)
        raise DivergenceError(f"{what} is not finite at step {step}; lower {argument('lr')}", doubtful)
