"""When a run has gone wrong beyond return, and why."""

from __future__ import annotations

import math

from featherback.core.naming import argument
from featherback.errors import FeatherbackError
from featherback.models.finite import check_weights
from featherback.models.model import Model

WORST = 10.0
"""A loss beyond this many times that of guessing (ln of the vocabulary) is no loss of a working model."""


LOST = 0.5
"""Share of what a model knew, as nats per token below guessing, that training may take from it for a while."""
LEAST_LOST = 1.0
"""The same in nats per token, at least: of a model that knew nothing, that share is noise."""


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


def is_lost(loss: float, before: float, vocab_size: int) -> bool:
    """Whether a held-out loss (nats per token) is so far above the one `before` training that it hardly comes back."""
    return loss > before + max(LEAST_LOST, LOST * (math.log(vocab_size) - before))


def check_finite(value: float, what: str, step: int, doubtful: int, model: Model) -> None:
    """The same of a number that may be large."""
    if not math.isfinite(value):
        check_weights(model)
        raise DivergenceError(f"{what} is not finite at step {step}; lower {argument('lr')}", doubtful)
