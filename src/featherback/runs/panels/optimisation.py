"""Options of the optimisation: gradients, steps, update rule, learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from featherback import methods, optim
from featherback.core.options import Panel, choice, option
from featherback.errors import FeatherbackError
from featherback.nn import objectives
from featherback.nn.objectives.base import Objective
from featherback.runs import parse

NEXT_TOKEN = "next_token"
"""The objective of runs that name none, and of all runs of versions that had no other."""
DEFAULT_EPOCHS = 3
MOST_EPOCHS = 10_000  # their batches are counted before the first step
CLIP = 1.0
"""Norm that the gradient of an adapter is clipped to."""
_SMALL, _LARGE = 576, 4096  # widths, of models of 0.1B and 8B parameters


def _learning_rates() -> str:
    """The default of --lr, in words."""

    def rates(rules: Any, usual: Any) -> str:
        found: dict[str, list[str]] = {}
        for name in rules:
            small, large = (f"{usual(name, width):g}" for width in (_SMALL, _LARGE))
            rate = small if small == large else f"{small} at a width of {_SMALL} to {large} at {_LARGE}"
            found.setdefault(rate, []).append(name)
        return "; ".join(f"{', '.join(named)}: {rate}" for rate, named in found.items())

    own = [(name, methods.METHODS[name]) for name in methods.METHODS.names]
    fixed = {name: method.FULL_LEARNING_RATE for name, method in own if method.can_train_weights}
    whichever = "; ".join(f"{name}: {rate:g} with any" for name, rate in fixed.items() if rate)
    adapters = rates(optim.for_adapters(), optim.default_learning_rate)
    return f"{adapters}. Whole models: {rates(optim.RULES.names, optim.full_learning_rate)}; {whichever}"


@dataclass(frozen=True, kw_only=True)
class OptimisationOptions(Panel):
    title = "Optimisation"

    method: str = choice("mesp", help="How gradients are computed or estimated.", own=methods.OPTIONS)
    method_options: Mapping[str, Any] = field(default_factory=dict)  # in the end all those of its method
    objective: str = choice(
        NEXT_TOKEN,
        help="The loss that training minimises. Held-out data are measured by next-token loss.",
        own=objectives.OPTIONS,
    )
    objective_options: Mapping[str, Any] = field(default_factory=dict)  # in the end all those of its objective
    accumulate: int = option(1, help="Batches per step.", least=1)
    steps: int | None = option(None, help="Optimiser steps.", least=1, free_on_resume=True)
    epochs: float | None = option(
        None,
        help="Passes over the data, instead of --steps; 0.5 is half of them.",
        above=0,
        most=MOST_EPOCHS,
        instead_of="steps",
        free_on_resume=True,
        shown_default=str(DEFAULT_EPOCHS),
    )
    learning_rate: float | None = option(
        None, help="Peak learning rate.", above=0, flags=("--lr", "--learning-rate"), shown_default=_learning_rates
    )
    loraplus_ratio: float = option(
        1.0,
        help="B's learning rate is this times A's, which is --lr (LoRA+, whose authors take 16); the default --lr is "
        "divided by the root of this.",
        above=0,
        only_for="lora",
    )
    optimizer: str = choice("adamw", help="Update rule.", own=optim.OPTIONS)
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)  # in the end all those of its rule
    schedule: str = option("cosine", help="Learning rate after the warm-up.", choices=tuple(optim.SCHEDULES))
    warmup: float = option(
        0,
        help="Steps over which the learning rate rises; below 1, that share of all steps.",
        parse=parse.warmup,
        least=0,
        metavar="STEPS|SHARE",
    )
    keep: str = option(
        "better",
        help="What is kept: the mean of the steps' adapters, or the last if that is better in the end; or always "
        "the last.",
        choices=("better", "last"),
        only_for="lora",
    )
    max_grad_norm: float | None = option(
        None,
        help="Clip the gradient to this norm. 0: never. A whole model's takes a second backward pass.",
        least=0,
        shown_default=f"{CLIP:g}; 0 with --train full",
    )

    @property
    def criterion(self) -> Objective:
        """The objective with its options."""
        return objectives.OPTIONS.make(self.objective, self.objective_options)

    @property
    def peak_learning_rate(self) -> float:
        """The learning rate after warm-up, once the model is known; FeatherbackError if a record has lost it."""
        if self.learning_rate is None:
            raise FeatherbackError(
                "The run's configuration has no learning rate: it is of an earlier version of Featherback, or damaged."
            )
        return self.learning_rate

    def warmup_steps(self, steps: int) -> int:
        """Those over which the learning rate rises, in a run of so many."""
        return int(self.warmup) if self.warmup >= 1 else round(self.warmup * steps)
