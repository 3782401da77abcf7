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
from featherback.models.model import Model
from featherback.weights.mapping import most_mapped
from featherback.weights.types import TensorType


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
    tokens: int = 256  # most tokens a batch holds: seq_len * batch_size
    sequence: int = 256  # most tokens a sequence holds
    compute: str = "bf16"
    optimizer_states: int = 2  # arrays as large as the adapter that the optimiser remembers
    threads: int = 1
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
        return cls(
            config=model.config,
            blocks=model.blocks,
            stored=[
                {name: BlankMatrix(m.shape, m.row_bytes, name, int(m.type)) for name, m in layer.items()}
                for layer in layers
            ],
            head=BlankMatrix(head.shape, head.row_bytes),
            layer_mapped=max(mapped(layer.values()) for layer in layers),
            weight_bytes=_total(m.nbytes for layer in layers for m in layer.values())
            + _total(m.nbytes for m in tables),
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
        return LoRALayout(self.blocks, self.rank, self.targets)

    @property
    def parameter_arrays(self) -> int:
        """Arrays as large as the adapter: parameters, gradients and the optimiser's states."""
        return 2 + self.optimizer_states


def _total(sizes: Iterable[int]) -> int:
    return sum(sizes)
