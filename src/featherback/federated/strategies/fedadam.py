"""FedAdam (Reddi et al., ICLR 2021, arXiv 2003.00295): the server takes an Adam step along the mean change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from featherback.core.options import option
from featherback.federated.strategies.base import Arrays, Strategy

_MOMENTS = ("m_t", "v_t")


@dataclass(frozen=True, kw_only=True)
class FedAdam(Strategy):
    FLOWER: ClassVar[str] = "FedAdam"

    eta: float = option(1e-3, above=0, help="Learning rate of the server.")
    beta1: float = option(0.9, least=0, below=1, help="Decay of the mean change.")
    beta2: float = option(0.99, least=0, below=1, help="Decay of the mean squared change.")
    tau: float = option(1e-3, above=0, help="Added to the root of the mean squared change.")

    def arguments(self) -> dict[str, Any]:
        return {"eta": self.eta, "beta_1": self.beta1, "beta_2": self.beta2, "tau": self.tau}

    def state(self, built: Any) -> Arrays:
        moments = {moment: getattr(built, moment) or {} for moment in _MOMENTS}
        return {f"{moment}:{name}": array for moment, arrays in moments.items() for name, array in arrays.items()}

    def restore(self, built: Any, state: Arrays) -> None:
        if not state:  # before the first round
            return
        for moment in _MOMENTS:
            prefix = f"{moment}:"
            found = {name.removeprefix(prefix): each for name, each in state.items() if name.startswith(prefix)}
            setattr(built, moment, found)


STRATEGY = FedAdam
