"""The sizes of a model's stored weights, as far as memory depends on them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from featherback.engine.backend.counting import BlankMatrix
from featherback.engine.formats.mapping import FOLIO, most_mapped
from featherback.engine.host.pager import mapped
from featherback.engine.host.reading import BLOCK
from featherback.methods.memory.plan import Weights
from featherback.models.architecture.config import ModelConfig
from featherback.models.model import Model
from featherback.nn.block import Block


@dataclass(frozen=True, kw_only=True)
class StoredSizes:
    """A model's blocks, and the shape and size of each of its matrices."""

    config: ModelConfig
    blocks: Sequence[Block]
    stored: Sequence[dict[str, BlankMatrix]]  # the matrices of each layer
    head: BlankMatrix
    layer_mapped: int  # most bytes of the file that a layer in use may have mapped
    weight_bytes: int  # of all weights, as stored
    vector_copies: int = 0  # bytes of norms and biases that the file does not hold as they are used

    @classmethod
    def of(cls, model: Model, **others: Any) -> StoredSizes:
        """Those of an open model; `others` are a subclass's fields."""
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
            "layer_mapped": max(mapped(layer.values()) for layer in layers),
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
        """The matrices of the largest layer, as stored."""
        return max(total(matrix.nbytes for matrix in layer.values()) for layer in self.stored)

    @cached_property
    def vector_bytes(self) -> int:
        """Norms and biases of all layers."""
        return 4 * sum(math.prod(shape) for block in self.blocks for shape in block.vectors.values())

    def resident(self, weights: Weights, vocab_tile: int, by_matrix: int) -> int:
        """Bytes of the weights' file that are resident at the peak; `vocab_tile`: rows of the head in use at once.

        `by_matrix`: most bytes that are mapped if each matrix is released after use, from a dry run.
        """
        if weights == "resident":
            return self.weight_bytes + FOLIO  # with norms, and what lies around the ends
        if weights == "streamed":
            return 0
        layer = by_matrix if weights == "by_matrix" else self.layer_mapped
        return max(layer, most_mapped(vocab_tile * self.head.row_bytes))

    def held_beside(self, weights: Weights, vocab_tile: int) -> int:
        """Bytes that only this process has: the two buffers of streamed weights, and copies of norms and biases."""
        if weights != "streamed":
            return self.vector_copies
        # With the norms that lie between the matrices.
        buffer = max(self.layer_bytes, vocab_tile * self.head.row_bytes)
        return 2 * (buffer + 16 * BLOCK + 8 * self.config.hidden_size) + self.vector_bytes


def total(sizes: Iterable[int]) -> int:
    """The sum of bytes."""
    return sum(sizes)
