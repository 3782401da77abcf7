"""Local differential privacy: each node clips its update and adds noise before it leaves the machine.

Flower's LocalDpMod adds Gaussian noise of the standard deviation sensitivity sqrt(2 ln(1.25 / delta)) / epsilon. The
sensitivity is 2 clipping_norm: two clipped updates differ by no more, whatever the data are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from featherback.core.options import option
from featherback.federated.privacy.base import Privacy

if TYPE_CHECKING:
    from flwr.app import Context, Message

    from featherback.federated.privacy.base import Next


@dataclass(frozen=True, kw_only=True)
class LocalDP(Privacy):
    EQUAL: ClassVar[bool] = True
    STRATEGIES: ClassVar[tuple[str, ...] | None] = ("fedavg", "fedprox", "fedadam")  # a gradient is no update to clip

    clipping_norm: float = option(10.0, above=0, help="Largest norm of a node's update.")
    epsilon: float = option(1.0, above=0, help="Privacy budget of one round. Smaller is more private; proven up to 1.")
    delta: float = option(1e-5, above=0, below=1, help="Probability that the promise does not hold.")

    def noise(self, values: int, nodes: int) -> float:
        return 2 * math.sqrt(2 * math.log(1.25 / self.delta) * values / nodes) / self.epsilon

    def node(self, message: Message, context: Context, call_next: Next) -> Message:
        from flwr.clientapp.mod import LocalDpMod

        mod = LocalDpMod(self.clipping_norm, 2 * self.clipping_norm, self.epsilon, self.delta)
        return mod(message, context, call_next)


PRIVACY = LocalDP
