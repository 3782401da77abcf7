"""Flower's averaging, with an optimiser's step after it: the strategy `gradients`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from featherback.federated.messages import Tensors, record_of
from featherback.federated.pieces import Pieces
from featherback.federated.stepper import Stepper
from featherback.federated.strategies.base import Arrays


class SteppedAverage(FedAvg):
    """Average gradients and take a step of `stepper` with them."""

    def __init__(self, stepper: Stepper, **options: Any) -> None:
        super().__init__(**options)
        self.stepper, self._pieces = stepper, Pieces(stepper.adapter.shapes())
        self._values: Arrays = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._values = self._pieces.unpack(dict(Tensors(arrays)))
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        mean, measures = super().aggregate_train(server_round, replies)
        if mean is None:
            return None, measures
        gradient = self._pieces.unpack(dict(Tensors(mean)))
        stepped = self.stepper.step(self._values, gradient, self.stepper.config.peak_learning_rate)
        return record_of(self._pieces.pack(stepped)), measures
