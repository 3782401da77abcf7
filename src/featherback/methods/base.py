"""The base class of gradient estimators: options, random numbers, and the forward pass that gives the loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from featherback.core.noise import Draw
from featherback.core.options import check, option
from featherback.data.batch import Batch
from featherback.engine.host.paged import PagedArray
from featherback.methods.assembly import Adapter, Parameters
from featherback.methods.memory.plan import Plan
from featherback.methods.memory.resources import Resources
from featherback.methods.sinks import GradientSink, WeightSink
from featherback.methods.sweep import ModelLike, Sweep, begin
from featherback.nn.context import Moves
from featherback.nn.encodings import EXACT, PRECISIONS
from featherback.nn.objectives.base import Objective
from featherback.nn.objectives.next_token import NEXT_TOKEN

FIRST = Draw()


@dataclass(frozen=True, kw_only=True)
class Options:
    """A method's options, each a field made by `options.option`; a subclass per method that has any.

    FeatherbackError, naming the option, for a value that an option cannot have.
    """

    def __post_init__(self) -> None:
        check(self)

    @property
    def precision(self) -> str | None:
        """The precision in which intermediates may be kept instead of computed again; None: none are ever kept."""
        return None

    def settled(self, train: str) -> Options:
        """These options, with defaults that depend on `train`: "lora" (an adapter of any kind) or "full"."""
        return self


@dataclass(frozen=True, kw_only=True)
class KeepingOptions(Options):
    """Options of methods that can keep intermediates where there is memory for them."""

    keep_precision: str = option(
        EXACT,
        choices=PRECISIONS,
        help="Precision of what is kept for the backward pass. 8bit: gate and up in half the memory, which changes "
        "gradients a little.",
    )

    @property
    def precision(self) -> str:
        return self.keep_precision


class Method(ABC):
    """Estimates the gradient of an adapter; with `adapter` None, of the model's own weights, if the method can."""

    needs_checkpoints: ClassVar[bool] = True  # block inputs wait for a backward pass
    can_chunk: ClassVar[bool] = True  # tokens may pass the blocks in chunks
    can_train_weights: ClassVar[bool] = False  # without an adapter
    FULL_LEARNING_RATE: ClassVar[float | None] = None  # of whole models; None: that of the optimiser
    options_class: ClassVar[type[Options]] = Options

    def __init__(
        self,
        model: ModelLike,
        adapter: Adapter | None,
        plan: Plan,
        resources: Resources,
        options: Options | None = None,
        objective: Objective = NEXT_TOKEN,
    ) -> None:
        self.model, self.adapter, self.plan, self.resources = model, adapter, plan, resources
        self.objective = objective
        self.options = options or self.options_class()

    @cached_property
    def states(self) -> dict[str, PagedArray]:
        """The method's state from step to step, by name. A run's checkpoints save it."""
        return {}

    @cached_property
    def slopes(self) -> list[float] | None:
        """The loss's slopes along a step's random directions, or None: none are logged. The logger empties it."""
        return None

    @abstractmethod
    def gradients(self, batch: Batch, scale: float, sink: GradientSink | WeightSink, draw: Draw = FIRST) -> float:
        """The summed loss (nats) of `batch`; d(scale * loss)/d(parameters) goes to `sink`, a layer at a time.

        With an adapter it is a GradientSink, without one a WeightSink.
        """

    def loss(
        self, batch: Batch, parameters: Parameters | None = None, draw: Draw | None = None, moves: Moves | None = None,
        objective: Objective = NEXT_TOKEN,
    ) -> float:  # fmt: skip
        """The summed loss (nats) over the batch's supervised tokens: a forward pass only.

        `objective`: next-token loss by default, also where training minimises another one. `parameters`: in place of
        the adapter's own values. `draw`: random numbers as in training, such as dropout's; None: none. `moves`: what
        zeroth-order methods add to the model's own weights.
        """
        with self._begin(batch, draw, moves) as sweep:
            sweep.embed()
            for i in range(len(self.model.blocks)):
                sweep.forward(i, parameters)
            return sweep.loss(objective)

    def close(self) -> None:
        """Close files."""
        self.resources.close()
        for state in self.states.values():
            state.close()

    @classmethod
    def returned(cls, layers: int, options: Options) -> int:
        """How many of the `layers` blocks have a backward pass in a step. The others have a forward pass only."""
        return layers

    def _begin(
        self, batch: Batch, draw: Draw | None = None, moves: Moves | None = None
    ) -> AbstractContextManager[Sweep]:
        """A sweep of `batch`, before the first block. `draw`: in training."""
        draw = draw if self.adapter is not None and self.adapter.draws else None
        return begin(self.model, self.adapter, self.plan, self.resources, batch, draw, moves)
