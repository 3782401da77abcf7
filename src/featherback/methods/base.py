"""The base class of gradient estimators: options, random numbers, and the forward pass that computes the loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from featherback.core.noise import Draw
from featherback.core.options import check, option
from featherback.data.batch import Batch
from featherback.engine.host.paged import PagedArray
from featherback.methods.assembly import Adapter, Parameters
from featherback.methods.entry import EntryStates
from featherback.methods.losses import loss
from featherback.methods.memory.plan import Plan
from featherback.methods.memory.resources import Resources
from featherback.methods.sweep import GradientSink, ModelLike, Sweep, WeightSink, begin
from featherback.nn.context import Perturbations
from featherback.nn.encodings import EXACT, PRECISIONS
from featherback.nn.objectives.base import Objective
from featherback.nn.objectives.next_token import NEXT_TOKEN

FIRST = Draw()


@dataclass(frozen=True, kw_only=True)
class Options:
    """A method's options. Each is a field made by `options.option`, in a subclass for each method that has any.

    Raises FeatherbackError, naming the option, for a value that is not allowed.
    """

    def __post_init__(self) -> None:
        check(self)

    @property
    def precision(self) -> str | None:
        """The precision in which intermediates may be kept for the backward pass. None: none are ever kept."""
        return None

    def settled(self, train: str) -> Options:
        """Return these options with defaults filled in that depend on `train`: "lora" (any adapter) or "full"."""
        return self


@dataclass(frozen=True, kw_only=True)
class KeepingOptions(Options):
    """Options of methods that can keep intermediates if there is memory for them."""

    keep_precision: str = option(
        EXACT,
        choices=PRECISIONS,
        help="Precision of the intermediates kept for the backward pass. 8bit stores gate and up in half the memory "
        "and changes gradients slightly. 2bit stores only the slope of an activation, in MLPs without a gate and "
        "without an adapter on down: gradients are then approximate, and their cosine with the exact ones is measured.",
    )

    @property
    def precision(self) -> str:
        return self.keep_precision


class Method(ABC):
    """Estimates the gradient of an adapter, or of the model's own weights if `adapter` is None and the method can."""

    needs_checkpoints: ClassVar[bool] = True  # block inputs are stored for a backward pass
    can_chunk: ClassVar[bool] = True  # tokens may pass the blocks in chunks
    can_train_weights: ClassVar[bool] = False  # works without an adapter
    FULL_LEARNING_RATE: ClassVar[float | None] = None  # default rate for whole models; None: the optimiser's
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
        self.entry_states: EntryStates | None = None
        """The states that enter the lowest trained block, kept on disk. None: the blocks below always run."""

    @cached_property
    def states(self) -> dict[str, PagedArray]:
        """The method's state between steps, by name. Checkpoints of a run save it."""
        return {}

    @abstractmethod
    def gradients(self, batch: Batch, scale: float, sink: GradientSink | WeightSink, draw: Draw = FIRST) -> float:
        """Return the summed loss (nats) of `batch`, and pass d(scale * loss)/d(parameters) to `sink`, layer by layer.

        `sink` is a GradientSink with an adapter, a WeightSink without one.
        """

    def loss(
        self, batch: Batch, parameters: Parameters | None = None, draw: Draw | None = None,
        perturbations: Perturbations | None = None, objective: Objective = NEXT_TOKEN,
    ) -> float:  # fmt: skip
        """Return the summed loss (nats) over the batch's supervised tokens. Runs a forward pass only.

        `objective`: by default the next-token loss, even if training minimises another one. `parameters`: replace the
        adapter's own values. `draw`: random numbers as in training (dropout); None: no randomness. `perturbations`:
        perturbations that zeroth-order methods add to the model's own weights.
        """
        with self._begin(batch, draw, perturbations) as sweep:
            for i in sweep.enter():
                sweep.forward(i, parameters)
            return loss(sweep, objective, parameters)

    @contextmanager
    def towards(self, objective: Objective) -> Iterator[None]:
        """Let `gradients` minimise another objective, until the end of the context."""
        usual, self.objective = self.objective, objective
        try:
            yield
        finally:
            self.objective = usual

    def close(self) -> None:
        """Close the files."""
        self.resources.close()
        for state in self.states.values():
            state.close()

    @property
    def first_trained(self) -> int:
        """The lowest block that trains anything. Those below it have no backward pass, whatever the method."""
        return 0 if self.adapter is None else self.adapter.layout.lowest

    @classmethod
    def count_backward(cls, layers: int, options: Options) -> int:
        """Return how many blocks have a backward pass in a step, of the `layers` blocks from `first_trained` on."""
        return layers

    def _begin(
        self, batch: Batch, draw: Draw | None = None, perturbations: Perturbations | None = None
    ) -> AbstractContextManager[Sweep]:
        """Return a sweep of `batch`, positioned before the first block. `draw`: random numbers, in training."""
        draw = draw if self.adapter is not None and self.adapter.draws else None
        return begin(self.model, self.adapter, self.plan, self.resources, batch, draw, perturbations, self.entry_states)


class ForwardOnly(Method):
    """Measures the loss of a model with its adapter, without checkpoints, gradients or optimiser states."""

    needs_checkpoints = False

    @classmethod
    def count_backward(cls, layers: int, options: Options) -> int:
        return 0

    def gradients(self, *_: Any) -> float:
        raise NotImplementedError("a forward pass has no gradients")
