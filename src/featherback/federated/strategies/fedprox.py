"""FedProx (Li et al., MLSys 2020, arXiv 1812.06127): averaging, and each node is pulled towards where it started.

Flower's strategy sends `mu` to the nodes. There, `featherback train --proximal` adds the term to each step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from featherback.core.options import option
from featherback.federated.strategies.base import Strategy

if TYPE_CHECKING:
    import flwr.serverapp.strategy as flower

    from featherback.models.model import Model
    from featherback.runs.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class FedProx(Strategy):
    mu: float = option(0.01, above=0, help="Factor of the proximal term.")

    def build(self, model: Model, config: TrainConfig, common: dict[str, Any]) -> flower.FedAvg:
        from flwr.serverapp.strategy import FedProx

        return FedProx(**common, proximal_mu=self.mu)


STRATEGY = FedProx
