"""What is to be trained, as far as memory and time depend on it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from featherback import families
from featherback.adapters.lora import LoRALayout
from featherback.architecture.config import ModelConfig
from featherback.backend.counting import BlankMatrix
from featherback.host.pager import mapped
from featherback.layers.block import Block
from featherback.memory import disk
from featherback.models.model import Model
from featherback.optim.layerwise import held_rows, state_sizes
from featherback.optim.rule import Rule
from featherback.optim.rules.adamw import AdamW
from featherback.parameters.roles import EMBEDDING, HEAD
from featherback.weights.mapping import most_mapped
from featherback.weights.types import TensorType
from featherback.whole.places import Place
from featherback.whole.settings import Whole


@dataclass(frozen=True, kw_only=True)
class Job:
    """A model's sizes and the options of a run."""

    config: ModelConfig
    blocks: Sequence[Block]
    stored: Sequence[dict[str, BlankMatrix]]  # the matrices of each layer
    head: BlankMatrix
    layer_mapped: int  # most bytes of the file that a layer in use may have mapped
    weight_bytes: int  # of all weights, as stored
    vector_copies: int = 0  # bytes of norms and biases that the file does not hold as they are used
    method: type[Any]  # a methods.Method
    options: Any = None  # the method's; None: the defaults
    rank: int = 8
    targets: str | tuple[str, ...] = "all"
    dropout: float = 0.0  # of LoRA's inputs
    dora: bool = False
    tokens: int = 256  # most tokens a batch holds
    sequence: int = 256  # most tokens a sequence holds
    compute: str = "bf16"
    rule: Rule = field(default_factory=AdamW)  # the optimiser
    threads: int = 1
    whole: Whole | None = None  # None: an adapter is trained
    files: bool = True  # False: the run directory lies in memory, where a file would save none
    accounts: dict[Any, Any] = field(
        default_factory=dict, compare=False
    )  # dry runs that were made: memory.dry_run

    @classmethod
    def of(cls, model: Model, **options: Any) -> Job:
        """The job of training `model`; `options` are this class's other fields."""
        weights = [model.layer(i) for i in range(model.config.num_hidden_layers)]
        layers = [layer.matrices for layer in weights]
        head = model.head.weight
        tables = [model.embed_tokens, *([] if head is model.embed_tokens else [head])]
        stored = [
            {name: BlankMatrix(m.shape, m.row_bytes, name, int(m.type)) for name, m in layer.items()}
            for layer in layers
        ]
        layer_mapped = max(mapped(layer.values()) for layer in layers)
        outside = [BlankMatrix(m.shape, m.row_bytes) for m in tables]
        if whole := options.get("whole"):
            stored = [
                {name: whole.stored(matrix, Place(name, layer)) for name, matrix in matrices.items()}
                for layer, matrices in enumerate(stored)
            ]
            outside = [whole.stored(matrix, Place(part)) for matrix, part in zip(outside, (EMBEDDING, HEAD))]
            layer_mapped = most_mapped(max(_total(m.nbytes for m in layer.values()) for layer in stored))
        return cls(
            config=model.config,
            blocks=model.blocks,
            stored=stored,
            head=outside[-1],
            layer_mapped=layer_mapped,
            weight_bytes=_total(m.nbytes for layer in stored for m in layer.values())
            + _total(m.nbytes for m in outside),
            vector_copies=_total(layer.copied_bytes for layer in weights),
            **options,
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
        sizes = [_total(matrix.nbytes for matrix in layer.values()) for layer in layers]
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

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.blocks)

    @cached_property
    def returned(self) -> int:
        """Layers that a step goes back through."""
        options = self.options or self.method.options_class()
        return int(self.method.returned(self.layers, options))

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
    def layer_bytes(self) -> int:
        """The matrices of the largest layer, as stored."""
        return max(_total(matrix.nbytes for matrix in layer.values()) for layer in self.stored)

    @cached_property
    def vector_bytes(self) -> int:
        """Norms and biases of all layers."""
        return 4 * sum(size for block in self.blocks for (size,) in block.vectors.values())

    @cached_property
    def layer_floats(self) -> int:
        """Adapter parameters of the largest layer."""
        return self.layout.size

    @cached_property
    def layout(self) -> LoRALayout:
        """Where the adapter's factors lie."""
        return LoRALayout(self.blocks, self.rank, self.targets, dora=self.dora)

    @cached_property
    def trained_floats(self) -> int:
        """Of the largest layer: parameters, gradients, the optimiser's states, and what DoRA has beside them."""
        states = state_sizes(self.rule, self.layout.slots).values()
        return 2 * self.layer_floats + sum(states) + self.layout.columns_size

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
    def buffer_floats(self) -> list[int]:
        """float32 elements of each array that is held at once beside scratch memory: by the norm and the optimiser."""
        if self.whole is not None:
            return []
        return [self.layer_floats, *held_rows(self.rule, self.layout.slots)]

    @cached_property
    def moved_states(self) -> int:
        """Bytes that a step reads and writes of what `state_bytes` counts, if that is in files."""
        if self.whole is None:
            return 4 * self.layers * (4 * self.layer_floats + 2 * self.trained_floats)
        return 2 * self.state_bytes


def _total(sizes: Iterable[int]) -> int:
    return sum(sizes)
