"""Synchronous data parallelism: each round is one step. Nodes return gradients; the server takes the optimiser's step.

The mean of the gradients, weighted by supervised tokens, is the gradient of all nodes' batches together, so a step
equals one of a single machine that accumulates these batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from featherback.errors import FeatherbackError
from featherback.federated.stepper import Stepper
from featherback.federated.strategies.base import GRADIENT, Arrays, Strategy
from featherback.runs.panels.optimisation import NEXT_TOKEN

if TYPE_CHECKING:
    from featherback.models.model import Model
    from featherback.runs.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class Gradients(Strategy):
    TASK: ClassVar[str] = GRADIENT

    @classmethod
    def check(cls, config: TrainConfig) -> None:
        usual = {"objective": NEXT_TOKEN, "lora_dropout": 0.0, "proximal": 0.0}
        for name, value in usual.items():
            if getattr(config, name) != value:
                raise FeatherbackError(
                    f"The strategy gradients works with {name} = {value!r} only. Remove {name} from the table train."
                )

    def build(self, model: Model, config: TrainConfig, common: dict[str, Any]) -> Any:
        from featherback.federated.stepping import SteppedAverage

        return SteppedAverage(Stepper(model, config), **common)

    def state(self, built: Any) -> Arrays:
        return built.stepper.state()

    def restore(self, built: Any, state: Arrays) -> None:
        if state:
            built.stepper.restore(state)


STRATEGY = Gradients
