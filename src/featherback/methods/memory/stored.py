"""The sizes of a model's stored weights that memory depends on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from featherback.engine.backend.counting import BlankMatrix
from featherback.engine.formats.mapping import FOLIO, most_mapped
from featherback.engine.host.pager import mapped
from featherback.engine.host.reading import BLOCK, without_stacks
from featherback.methods.memory.plan import Weights
from featherback.models.architecture.config import ModelConfig
from featherback.models.model import Model
from featherback.nn.block import Block


@dataclass(frozen=True, kw_only=True)
class StoredSizes:
    """The blocks of a model, with shape and stored size of each matrix."""

    config: ModelConfig
    blocks: Sequence[Block]
    stored: Sequence[dict[str, BlankMatrix]]  # matrices of each layer
    head: BlankMatrix
    layer_mapped: int  # most bytes of the file that a layer in use maps
    weight_bytes: int  # of all weights, as stored
    vector_copies: int = 0  # bytes of norms and biases that are converted when they are loaded

    @classmethod
    def of(cls, model: Model, **others: Any) -> StoredSizes:
        """Return the sizes of an open model. `others`: fields of a subclass."""
        weights = [model.layer(i) for i in range(model.config.num_hidden_layers)]
        layers = [layer.matrices for layer in weights]
        stored = [
            {name: BlankMatrix(m.shape, m.row_bytes, name, int(m.type)) for name, m in layer.items()}
            for layer in layers
        ]
        outside = [BlankMatrix(m.shape, m.row_bytes) for m in model.tables]
        sizes: dict[str, Any] = {
            "stored": stored,
            "head": outside[-1],
            "layer_mapped": max(mapped(without_stacks(model, index, layer)) for index, layer in enumerate(weights)),
            "weight_bytes": total(m.nbytes for layer in stored for m in layer.values())
            + total(m.nbytes for m in outside),
            "vector_copies": total(layer.copied_bytes for layer in weights),
        }
        return cls(config=model.config, blocks=model.blocks, **sizes | others)

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.blocks)

    @cached_property
    def layer_bytes(self) -> int:
        """Bytes of the matrices of the largest layer, as stored, without experts."""
        return max(
            total(matrix.nbytes for name, matrix in layer.items() if name not in block.stacks)
            for block, layer in zip(self.blocks, self.stored)
        )

    @cached_property
    def expert_mapped(self) -> int:
        """Most bytes of the file that an expert in use maps, in one of its stacks after the other."""
        return max(
            total(most_mapped(layer[name].nbytes // count) for name, count in block.stacks.items())
            for block, layer in zip(self.blocks, self.stored)
        )

    @cached_property
    def expert_bytes(self) -> int:
        """Bytes of all experts, as stored."""
        return total(layer[name].nbytes for block, layer in zip(self.blocks, self.stored) for name in block.stacks)

    @cached_property
    def vector_bytes(self) -> int:
        """Bytes of the norms and biases of all layers."""
        return 4 * sum(math.prod(shape) for block in self.blocks for shape in block.vectors.values())

    @cached_property
    def swept_bytes(self) -> int:
        """Bytes of the matrices that every pass over the layers reads: all but experts."""
        return total(
            matrix.nbytes
            for block, layer in zip(self.blocks, self.stored)
            for name, matrix in layer.items()
            if name not in block.stacks
        )

    @property
    def whole_bytes(self) -> int:
        """Bytes of the weights that are read as a whole: all but experts."""
        return self.weight_bytes - self.expert_bytes

    def resident(self, weights: Weights, vocab_tile: int, by_matrix: int) -> int:
        """Return the bytes of the weights' file that are resident at the peak.

        `vocab_tile`: rows of the head in use at a time. `by_matrix`: most bytes mapped if each matrix is released after
        use, from a dry run.
        """
        if weights == "resident":
            return self.weight_bytes + FOLIO  # includes norms, and the pages at both ends
        if weights == "streamed":
            return self.expert_mapped
        layer = by_matrix if weights == "by_matrix" else self.layer_mapped + self.expert_mapped
        return max(layer, most_mapped(vocab_tile * self.head.row_bytes))

    def private_bytes(self, weights: Weights, vocab_tile: int) -> int:
        """Return the bytes private to this process: buffers of streamed weights, copies of norms and biases."""
        if weights != "streamed":
            return self.vector_copies
        # Includes the norms that are stored between the matrices.
        buffer = max(self.layer_bytes, vocab_tile * self.head.row_bytes)
        return 2 * (buffer + 16 * BLOCK + 8 * self.config.hidden_size) + self.vector_bytes


def total(sizes: Iterable[int]) -> int:
    """Return the sum of bytes."""
    return sum(sizes)
