"""Federated averaging (McMahan et al., AISTATS 2017, arXiv 1602.05629): the mean, weighted by supervised tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from featherback.federated.strategies.base import Strategy

if TYPE_CHECKING:
    import flwr.serverapp.strategy as flower

    from featherback.models.model import Model
    from featherback.runs.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class FedAvg(Strategy):
    def build(self, model: Model, config: TrainConfig, common: dict[str, Any]) -> flower.FedAvg:
        from flwr.serverapp.strategy import FedAvg

        return FedAvg(**common)


STRATEGY = FedAvg
