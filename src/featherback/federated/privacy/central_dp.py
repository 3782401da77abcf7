"""Central differential privacy: the server clips each update and adds noise to their mean.

Flower's wrapper adds Gaussian noise of the standard deviation noise_multiplier * clipping_norm / nodes. Nodes trust the
server, which sees their updates; whoever gets the adapter learns little about a single node.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from featherback.core.options import option
from featherback.federated.privacy.base import Privacy

if TYPE_CHECKING:
    from flwr.serverapp.strategy import FedAvg, Strategy


@dataclass(frozen=True, kw_only=True)
class CentralDP(Privacy):
    EQUAL: ClassVar[bool] = True
    STRATEGIES: ClassVar[tuple[str, ...] | None] = ("fedavg", "fedprox")  # others scale what the noise is added to

    clipping_norm: float = option(10.0, above=0, help="Largest norm of a node's update.")
    noise_multiplier: float = option(0.1, above=0, help="Noise in units of clipping-norm. Larger is more private.")

    def wrap(self, strategy: FedAvg) -> Strategy:
        from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping as Clipped

        return Clipped(strategy, self.noise_multiplier, self.clipping_norm, num_sampled_clients=1)

    def noise(self, values: int, nodes: int) -> float:
        return self.noise_multiplier * math.sqrt(values) / nodes

    def before_mean(self, strategy: Strategy, nodes: int) -> None:
        """Tell the strategy how many updates there are: with fewer nodes, the mean needs more noise."""
        strategy.num_sampled_clients = nodes


PRIVACY = CentralDP
