"""The base class of the ways to protect the nodes' results, and the exchange of a round without protection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from featherback.core import options
from featherback.federated.asking import ask

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import FedAvg, Strategy

    Next = Callable[[Message, Context], Message]


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """The options of a way to protect updates. Raises FeatherbackError if one of them is wrong."""

    EQUAL: ClassVar[bool] = False
    """Whether all nodes must have the same weight, because the noise is made for that."""
    STRATEGIES: ClassVar[tuple[str, ...] | None] = None
    """The strategies with which it works; None: all."""

    def __post_init__(self) -> None:
        options.check(self)

    def wrap(self, strategy: FedAvg) -> Strategy:
        """Return the strategy with what the server adds to it."""
        return strategy

    def node(self, message: Message, context: Context, call_next: Next) -> Message:
        """Answer a message of training on a node: `call_next` trains, and what it returns may be changed."""
        return call_next(message, context)

    def noise(self, values: int, nodes: int) -> float:
        """Return the norm of the noise in the mean of `nodes` updates of `values` values, in units of clipping_norm."""
        return 0.0

    def before_mean(self, strategy: Strategy, nodes: int) -> None:
        """Prepare the mean of the updates of `nodes` nodes."""

    def exchange(
        self, strategy: Strategy, number: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid, timeout: float
    ) -> Iterator[tuple[int, Message]]:
        """Send the nodes their work for round `number`, and yield each node and its answer."""
        return ask(grid, strategy.configure_train(number, arrays, config, grid), timeout)
