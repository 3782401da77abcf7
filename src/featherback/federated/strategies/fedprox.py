"""FedProx (Li et al., MLSys 2020, arXiv 1812.06127): averaging, and each node is pulled towards where it started.

Flower's strategy sends `mu` to the nodes. There, `featherback train --proximal` adds the term to each step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from featherback.core.options import option
from featherback.federated.strategies.base import Strategy


@dataclass(frozen=True, kw_only=True)
class FedProx(Strategy):
    FLOWER: ClassVar[str] = "FedProx"

    mu: float = option(0.01, above=0, help="Factor of the proximal term.")

    def arguments(self) -> dict[str, Any]:
        return {"proximal_mu": self.mu}


STRATEGY = FedProx
