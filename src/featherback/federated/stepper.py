"""The optimiser of the strategy `gradients`: steps of an adapter with gradients that come from elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from featherback import optim
from featherback.errors import FeatherbackError
from featherback.federated.strategies.base import Arrays
from featherback.models.adapter import Adapter
from featherback.runs.initial_state import first_optimizer

if TYPE_CHECKING:
    from featherback.models.model import Model
    from featherback.runs.config import TrainConfig

_UPDATES = "updates"


class Stepper:
    """The optimiser of `featherback train`, on an adapter in memory."""

    def __init__(self, model: Model, config: TrainConfig) -> None:
        self.config, self.adapter = config, Adapter(model, config.form, None)
        self.optimizer = first_optimizer(config, self.adapter)

    def step(self, values: Arrays, gradient: Arrays, rate: float) -> Arrays:
        """Return the tensors after a step from `values` along `gradient`, both in PEFT's names and layouts."""
        self.adapter.load_state(gradient)
        gathered = self.adapter.parameters.zeros_like(self.adapter.parameters.size)
        row = np.empty(gathered.size, np.float32)
        for layer in self.adapter.layout.adapted:
            self.adapter.parameters.read(layer, row)
            gathered.write(layer, row)
        self.adapter.load_state(values)
        scale = optim.clip_scale(optim.global_norm(gathered), self.config.clip_norm)
        if not self.optimizer.step(gathered, rate, scale):
            raise FeatherbackError("The adapter is not finite after a step. Lower lr in the table train.")
        return self.adapter.state()

    def state(self) -> Arrays:
        """Return the optimiser's states and step counts."""
        found: Arrays = {_UPDATES: np.asarray(self.optimizer.updates, np.float32)}
        for name, state in self.optimizer.states.items():
            rows = np.zeros((state.layers, state.size), np.float32)
            for layer in state.rows:
                state.read(layer, rows[layer])
            found[name] = rows
        return found

    def restore(self, stored: Arrays) -> None:
        """Take over the states of an earlier server."""
        if stored.keys() != {_UPDATES, *self.optimizer.states}:
            raise FeatherbackError("The last round was made with another optimizer. Choose a new folder `out`.")
        self.optimizer.updates = [int(each) for each in stored[_UPDATES]]
        for name, state in self.optimizer.states.items():
            for layer in state.rows:
                state.write(layer, stored[name][layer])
