"""Everything about a training job that memory and time depend on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

from featherback.engine.backend.counting import BlankMatrix, Work
from featherback.engine.formats.mapping import most_mapped
from featherback.engine.formats.types import TensorType
from featherback.methods.memory import disk
from featherback.methods.memory.plan import Plan
from featherback.methods.memory.stored import StoredSizes, total
from featherback.methods.whole.settings import WholeModelSettings
from featherback.methods.whole.trained_weights import WeightId
from featherback.models import families
from featherback.models.architecture.config import ModelConfig
from featherback.models.form import Form, Layout
from featherback.models.model import Model
from featherback.nn.block import Block
from featherback.nn.objectives.base import Objective
from featherback.nn.objectives.next_token import NEXT_TOKEN
from featherback.nn.slots import EMBEDDING, HEAD
from featherback.optim.layerwise import norm_bytes, state_sizes, step_bytes
from featherback.optim.rule import Rule
from featherback.optim.rules.adamw import AdamW


class Writing(Protocol):
    """The answers that the model writes in each step, before it learns from them."""

    @property
    def most(self) -> int:
        """Answers in a step."""

    def needs(self, plan: Plan) -> tuple[int, int]:
        """Return the bytes of memory that writing takes, and the bytes of the model's file that it maps."""

    def passes(self, plan: Plan) -> int:
        """Return the most passes over the weights in a step."""

    def work(self, plan: Plan) -> Work:
        """Return the work of a pass."""


@dataclass(frozen=True, kw_only=True)
class Job(StoredSizes):
    """A model's sizes and the options of a run."""

    method: type[Any]  # a subclass of methods.Method
    options: Any = None  # of the method; None: its defaults
    form: Form | None = field(default_factory=Form)  # of the adapter in every layer; None: no adapter
    objective: Objective = NEXT_TOKEN
    tokens: int = 256  # most tokens per batch
    sequence: int = 256  # most tokens per sequence
    compute: str = "bf16"
    rule: Rule = field(default_factory=AdamW)  # the optimiser
    threads: int = 1
    whole: WholeModelSettings | None = None  # None: an adapter is trained
    files: bool = True  # False: the run directory is in memory, so files would save none
    reading: int = 0  # bytes held while an adapter is read from its file, before anything else
    writing: Writing | None = None  # None: the model writes no answers
    accounts: dict[Any, Any] = field(default_factory=dict, compare=False)  # results of dry runs

    @classmethod
    def of(cls, model: Model, **options: Any) -> Job:
        """Return the job of training `model`. `options` are the other fields of this class."""
        job = super().of(model, **options)
        assert isinstance(job, cls)
        return job if job.whole is None else job._in_copy(model, job.whole)

    def _in_copy(self, model: Model, whole: WholeModelSettings) -> Job:
        """Return the same job for a copy of the model that stores its weights as `whole` says."""
        stored = [
            {name: whole.stored(matrix, WeightId(name, layer)) for name, matrix in matrices.items()}
            for layer, matrices in enumerate(self.stored)
        ]
        tables = zip((EMBEDDING, HEAD), model.tables)  # one table if they are tied
        outside = [whole.stored(BlankMatrix(m.shape, m.row_bytes), WeightId(part)) for part, m in tables]
        return replace(
            self,
            stored=stored,
            head=outside[-1],
            layer_mapped=most_mapped(max(total(m.nbytes for m in layer.values()) for layer in stored)),
            weight_bytes=total(m.nbytes for layer in stored for m in layer.values()) + total(m.nbytes for m in outside),
        )

    @classmethod
    def of_shape(cls, config: ModelConfig, stored: TensorType, **options: Any) -> Job:
        """Return the job of training a model of this shape, with every matrix stored as `stored`."""
        blocks = families.blocks(config)
        layers = [
            {
                name: BlankMatrix((rows, cols), stored.row_bytes(cols), name, int(stored))
                for name, (rows, cols) in block.projections.items()
            }
            for block in blocks
        ]
        sizes = [
            total(matrix.nbytes for name, matrix in layer.items() if name not in block.stacks)
            for block, layer in zip(blocks, layers)
        ]
        experts = total(layer[name].nbytes for block, layer in zip(blocks, layers) for name in block.stacks)
        head = BlankMatrix((config.vocab_size, config.hidden_size), stored.row_bytes(config.hidden_size))
        return cls(
            config=config,
            blocks=blocks,
            stored=layers,
            head=head,
            layer_mapped=most_mapped(max(sizes)),
            weight_bytes=sum(sizes) + experts + (1 if config.tie_word_embeddings else 2) * head.nbytes,
            **options,
        )

    @cached_property
    def backward_count(self) -> int:
        """Number of layers with a backward pass in a step."""
        options = self.options or self.method.options_class()
        return int(self.method.count_backward(self.layers - self.lowest, options))

    @property
    def trains(self) -> bool:
        """Whether a step has a backward pass. If not, it only measures the loss."""
        return self.backward_count > 0

    @cached_property
    def lowest(self) -> int:
        """The lowest layer that trains anything. Those below it only run forward."""
        return 0 if self.form is None else self.layout.lowest

    @cached_property
    def precision(self) -> str | None:
        """The precision in which intermediates may be kept. None: they are never kept."""
        precision: str | None = (self.options or self.method.options_class()).precision
        return precision

    @cached_property
    def first_equal(self) -> list[int]:
        """For each layer, the first layer equal to it: same block, tensor types and trained parts.

        Layers below the lowest trained one differ from those above it.
        """
        first: dict[object, int] = {}
        found = []
        for number, (block, stored) in enumerate(zip(self.blocks, self.stored, strict=True)):
            trained: object = () if self.whole is None else self.whole.trained_parts(number, block)
            if self.form is not None:
                trained = number < self.lowest, tuple(self.layout.kinds(number).items())
            types = tuple((name, matrix.type) for name, matrix in stored.items())
            found.append(first.setdefault((id(block), types, trained), number))
        return found

    @cached_property
    def layer_floats(self) -> int:
        """Number of adapter parameters in the largest layer."""
        return self.layout.size

    @property
    def adapted(self) -> int:
        """Number of layers with trained values of an adapter."""
        return len(self.layout.adapted)

    @cached_property
    def layout(self) -> Layout:
        """The layout of the adapter's values."""
        assert self.form is not None
        return Layout(self.blocks, self.form)

    @property
    def computed_blocks(self) -> Sequence[Block]:
        """The blocks that a step computes: with the adapter's own branches, if it has any."""
        return self.blocks if self.form is None else self.layout.blocks

    @cached_property
    def trained_floats(self) -> int:
        """Float32 values of the largest layer: parameters, gradients, optimiser states and measured values."""
        states = state_sizes(self.rule, self.layout.slots).values()
        return 2 * self.layer_floats + sum(states) + self.layout.fixed.size

    @cached_property
    def state_bytes(self) -> int:
        """Bytes of trained values that are not in scratch memory.

        For an adapter: parameters, gradients and optimiser states; only parameters if nothing is trained. For a whole
        model: the optimiser states.
        """
        if self.form is None and self.whole is None:
            return 0
        if not self.trains:
            return 4 * self.adapted * (self.layer_floats + self.layout.fixed.size)
        if self.whole is None:
            return 4 * self.adapted * self.trained_floats
        rule, trained = self.whole.rule, self.whole.trained(self.config, self.blocks).items()
        return 4 * sum(sum(rule.state_sizes(shape, place.role).values()) for place, shape in trained)

    @cached_property
    def disk_bytes(self) -> int:
        """The most bytes that a run takes on disk, without scratch files."""
        if self.whole is not None:
            return disk.of_whole_model(self.weight_bytes, self.state_bytes)
        states = sum(state_sizes(self.rule, self.layout.slots).values())
        return 4 * self.adapted * disk.of_adapter(self.layer_floats, states)

    @cached_property
    def buffer_bytes(self) -> int:
        """Bytes held while no layer's weights are needed: while an adapter is read, and while its optimiser runs.

        For whole models: 0 (in scratch).
        """
        if self.whole is not None or self.form is None or not self.trains:
            return self.reading
        return norm_bytes(self.layer_floats) + step_bytes(self.rule, self.layout.slots)

    @cached_property
    def moved_states(self) -> int:
        """Bytes of `state_bytes` that a step reads and writes, if they are in files."""
        if (self.form is None and self.whole is None) or not self.trains:
            return self.state_bytes
        if self.whole is None:
            return 4 * self.adapted * (4 * self.layer_floats + 2 * self.trained_floats)
        return 2 * self.state_bytes
