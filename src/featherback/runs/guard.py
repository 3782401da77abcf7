"""Checks that end a run whose training has diverged."""

from __future__ import annotations

import math

from featherback.core.naming import argument
from featherback.errors import FeatherbackError
from featherback.models.finite import check_weights
from featherback.models.model import Model

WORST = 10.0
"""A loss above this many times that of guessing (ln of the vocabulary size) means that training has diverged."""


LOST = 0.5
"""How much of a model's advantage over guessing, in nats per token, training may lose for a while, as a share."""
LEAST_LOST = 1.0
"""The same limit is at least this many nats per token: for a model close to guessing, the share would be noise."""


class DivergenceError(FeatherbackError):
    """The current parameters must not be kept. `step`: the last step whose parameters are in doubt."""

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


def check_loss(loss: float, what: str, step: int, doubtful: int, model: Model, per_token: bool = True) -> None:
    """Raise DivergenceError if a loss, measured at `step`, is not finite, or has exploded if it is `per_token` (nats).

    `what`: its name in the message. `doubtful`: the number of steps behind the measured parameters. Raises
    FeatherbackError if the model's own weights are not finite.
    """
    check_finite(loss, what, step, doubtful, model)
    guessing = math.log(model.config.vocab_size)
    if per_token and loss > WORST * max(1.0, guessing):
        raise DivergenceError(
            f"{what} exploded at step {step}: {loss:.4g} nats per token, and random guessing gives {guessing:.1f}; "
            f"lower {argument('lr')}",
            doubtful,
        )


def is_lost(loss: float, before: float, vocab_size: int, per_token: bool = True) -> bool:
    """Return whether a held-out loss is too far above the one `before` training to recover.

    A loss that is not `per_token` (nats) has no loss of guessing: twice the loss before training takes its place.
    """
    guessing = math.log(vocab_size) if per_token else 2 * before
    return loss > before + max(LEAST_LOST, LOST * (guessing - before))


def check_finite(value: float, what: str, step: int, doubtful: int, model: Model) -> None:
    """Raise DivergenceError if `value` is not finite; the arguments are those of `check_loss`."""
    if not math.isfinite(value):
        check_weights(model)
        raise DivergenceError(f"{what} is not finite at step {step}; lower {argument('lr')}", doubtful)
