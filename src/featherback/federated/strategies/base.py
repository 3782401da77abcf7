"""The base class of strategies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from featherback.core import options
from featherback.errors import FeatherbackError

if TYPE_CHECKING:
    from flwr.serverapp.strategy import FedAvg

    from featherback.models.model import Model
    from featherback.runs.config import TrainConfig

Arrays = dict[str, npt.NDArray[np.float32]]
"""Tensors by name."""
FIT, GRADIENT = "fit", "gradient"
"""What a node does in a round: train for a while and return its adapter, or return the gradient of one batch."""


@dataclass(frozen=True, kw_only=True)
class Strategy(ABC):
    """The options of a strategy. Raises FeatherbackError if one of them is wrong."""

    TASK: ClassVar[str] = FIT
    """What nodes do in a round."""

    def __post_init__(self) -> None:
        options.check(self)

    @classmethod  # noqa: B027 - most strategies work with all options
    def check(cls, config: TrainConfig) -> None:
        """Raise FeatherbackError if nodes cannot train with these options."""

    @abstractmethod
    def build(self, model: Model, config: TrainConfig, common: dict[str, Any]) -> FedAvg:
        """Return Flower's strategy. `config`: the options of training. `common`: arguments of every strategy."""

    def state(self, built: FedAvg) -> Arrays:
        """Return what the server must keep beside the adapter to go on with the next round."""
        return {}

    def restore(self, built: FedAvg, state: Arrays) -> None:
        """Take over the state of an earlier server."""
        if state:
            raise FeatherbackError("The last round was made with another strategy. Choose a new folder `out`.")
