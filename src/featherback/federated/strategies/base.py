"""The base class of strategies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from featherback.core import options
from featherback.errors import FeatherbackError

if TYPE_CHECKING:
    from featherback.models.model import Model
    from featherback.runs.config import TrainConfig

Arrays = dict[str, npt.NDArray[np.float32]]
"""Tensors by name."""
FIT, GRADIENT = "fit", "gradient"
"""What a node does in a round: train for a while and return its adapter, or return the gradient of one batch."""


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """The options of a strategy. Raises FeatherbackError if one of them is wrong."""

    TASK: ClassVar[str] = FIT
    """What nodes do in a round."""
    FLOWER: ClassVar[str] = ""
    """The name of Flower's strategy, if `build` makes one."""

    def __post_init__(self) -> None:
        options.check(self)

    @classmethod
    def check(cls, config: TrainConfig) -> None:
        """Raise FeatherbackError if nodes cannot train with these options."""

    def build(self, model: Model, config: TrainConfig, common: dict[str, Any]) -> Any:
        """Return Flower's strategy. `config`: the options of training. `common`: arguments of every strategy."""
        from flwr.serverapp import strategy

        return getattr(strategy, self.FLOWER)(**common, **self.arguments())

    def arguments(self) -> dict[str, Any]:
        """Return the arguments that only Flower's strategy of this kind has."""
        return {}

    def state(self, built: Any) -> Arrays:
        """Return what the server must keep beside the adapter to go on with the next round."""
        return {}

    def restore(self, built: Any, state: Arrays) -> None:
        """Take over the state of an earlier server."""
        if state:
            raise FeatherbackError("The last round was made with another strategy. Choose a new folder `out`.")
