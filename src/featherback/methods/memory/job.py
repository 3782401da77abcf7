"""What is to be trained, as far as memory and time depend on it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from featherback.engine.backend.counting import BlankMatrix
from featherback.engine.formats.mapping import most_mapped
from featherback.engine.formats.types import TensorType
from featherback.methods.memory import disk
from featherback.methods.memory.stored import StoredSizes, total
from featherback.methods.whole.places import Place
from featherback.methods.whole.settings import Whole
from featherback.models import families
from featherback.models.architecture.config import ModelConfig
from featherback.models.form import Form, Layout
from featherback.models.model import Model
from featherback.nn.objectives.base import Objective
from featherback.nn.objectives.next_token import NEXT_TOKEN
from featherback.nn.roles import EMBEDDING, HEAD
from featherback.optim.layerwise import norm_bytes, state_sizes, step_bytes
from featherback.optim.rule import Rule
from featherback.optim.rules.adamw import AdamW


@dataclass(frozen=True, kw_only=True)
class Job(StoredSizes):
    """A model's sizes and the options of a run."""

    method: type[Any]  # a methods.Method
    options: Any = None  # the method's; None: the defaults
    form: Form | None = field(default_factory=Form)  # of the adapter, the same in every layer; None: there is none
    objective: Objective = NEXT_TOKEN
    tokens: int = 256  # most tokens a batch holds
    sequence: int = 256  # most tokens a sequence holds
    compute: str = "bf16"
    rule: Rule = field(default_factory=AdamW)  # the optimiser
    threads: int = 1
    whole: Whole | None = None  # None: an adapter is trained
    files: bool = True  # False: the run directory lies in memory, where a file would save none
    accounts: dict[Any, Any] = field(default_factory=dict, compare=False)  # dry runs that were made

    @classmethod
    def of(cls, model: Model, **options: Any) -> Job:
        """The job of training `model`; `options` are this class's other fields."""
        job = super().of(model, **options)
        assert isinstance(job, cls)
        return job if job.whole is None else job._in_copy(model, job.whole)

    def _in_copy(self, model: Model, whole: Whole) -> Job:
        """The same where the weights are trained, in a copy of the model that stores them as `whole` says."""
        stored = [
            {name: whole.stored(matrix, Place(name, layer)) for name, matrix in matrices.items()}
            for layer, matrices in enumerate(self.stored)
        ]
        tables = zip((EMBEDDING, HEAD), model.tables)  # tied, they are one
        outside = [whole.stored(BlankMatrix(m.shape, m.row_bytes), Place(part)) for part, m in tables]
        return replace(
            self,
            stored=stored,
            head=outside[-1],
            layer_mapped=most_mapped(max(total(m.nbytes for m in layer.values()) for layer in stored)),
            weight_bytes=total(m.nbytes for layer in stored for m in layer.values()) + total(m.nbytes for m in outside),
        )

    @classmethod
    def of_shape(cls, config: ModelConfig, stored: TensorType, **options: Any) -> Job:
        """The job of training a model of this shape, every matrix stored as `stored`."""
        blocks = families.blocks(config)
        layers = [
            {
                name: BlankMatrix((rows, cols), stored.row_bytes(cols), name, int(stored))
                for name, (rows, cols) in block.projections.items()
            }
            for block in blocks
        ]
        sizes = [total(matrix.nbytes for matrix in layer.values()) for layer in layers]
        head = BlankMatrix((config.vocab_size, config.hidden_size), stored.row_bytes(config.hidden_size))
        return cls(
            config=config,
            blocks=blocks,
            stored=layers,
            head=head,
            layer_mapped=most_mapped(max(sizes)),
            weight_bytes=sum(sizes) + (1 if config.tie_word_embeddings else 2) * head.nbytes,
            **options,
        )

    @cached_property
    def returned(self) -> int:
        """Layers that a step goes back through."""
        options = self.options or self.method.options_class()
        return int(self.method.returned(self.layers, options))

    @cached_property
    def precision(self) -> str | None:
        """That in which intermediates may be kept; None: they never are."""
        precision: str | None = (self.options or self.method.options_class()).precision
        return precision

    @cached_property
    def alike(self) -> list[int]:
        """For each layer the first one that is like it: the same block and types, as much of it trained."""
        first: dict[object, int] = {}
        found = []
        for number, (block, stored) in enumerate(zip(self.blocks, self.stored, strict=True)):
            trained = () if self.whole is None else self.whole.wanted_in(number, block)
            types = tuple((name, matrix.type) for name, matrix in stored.items())
            found.append(first.setdefault((id(block), types, trained), number))
        return found

    @cached_property
    def layer_floats(self) -> int:
        """Adapter parameters of the largest layer."""
        return self.layout.size

    @cached_property
    def layout(self) -> Layout:
        """Where the adapter's values lie."""
        assert self.form is not None
        return Layout(self.blocks, self.form)

    @cached_property
    def trained_floats(self) -> int:
        """Of the largest layer: parameters, gradients, the optimiser's states, and what was measured for them."""
        states = state_sizes(self.rule, self.layout.slots).values()
        return 2 * self.layer_floats + sum(states) + self.layout.fixed.size

    @cached_property
    def state_bytes(self) -> int:
        """What is trained and what belongs to it, where it does not pass through scratch memory: of an adapter,
        parameters, gradients and states; of a model's own weights, the states.
        """
        if self.whole is None:
            return 4 * self.layers * self.trained_floats
        rule, trained = self.whole.rule, self.whole.trained(self.config, self.blocks).items()
        return 4 * sum(sum(rule.state_sizes(shape, place.role).values()) for place, shape in trained)

    @cached_property
    def disk_bytes(self) -> int:
        """Bytes on disk that a run comes to at most, without scratch files."""
        if self.whole is not None:
            return disk.of_whole_model(self.weight_bytes, self.state_bytes)
        states = sum(state_sizes(self.rule, self.layout.slots).values())
        return 4 * self.layers * disk.of_adapter(self.layer_floats, states)

    @cached_property
    def buffer_bytes(self) -> int:
        """Bytes that an adapter's norm and optimiser hold; of a model's own weights, they are in scratch memory."""
        if self.whole is not None:
            return 0
        return norm_bytes(self.layer_floats) + step_bytes(self.rule, self.layout.slots)

    @cached_property
    def moved_states(self) -> int:
        """Bytes that a step reads and writes of what `state_bytes` counts, if that is in files."""
        if self.whole is None:
            return 4 * self.layers * (4 * self.layer_floats + 2 * self.trained_floats)
        return 2 * self.state_bytes
