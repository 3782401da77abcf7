"""The trained weights of a model, and where they are stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from math import prod
from typing import NamedTuple

from featherback.nn.block import Block
from featherback.nn.slots import EMBEDDING, HEAD, MATRIX, NORM, NORM_BIAS, TABLE


class WeightId(NamedTuple):
    """A trained weight. It may consist of some rows of a stored tensor that holds several weights."""

    part: str  # "q_proj", "q_bias", "input_layernorm", or a weight outside the layers
    layer: int | None = None
    first_row: int = 0  # in the stored tensor; for a vector, the first element

    def __str__(self) -> str:
        rows = f", from row {self.first_row}" if self.first_row else ""
        return self.part + ("" if self.layer is None else f" of layer {self.layer}") + rows

    @property
    def role(self) -> str:
        """The weight's role for optimisers: MATRIX or TABLE."""
        return TABLE if self.part in (EMBEDDING, HEAD) else MATRIX

    @property
    def name(self) -> str:
        """The name for --freeze: "embed_tokens", "layers.3.q_proj"."""
        return self.part if self.layer is None else f"layers.{self.layer}.{self.part}"

    def is_one_of(self, patterns: Sequence[str]) -> bool:
        """Whether one of the patterns matches the name: "embed_tokens", "layers.3.q_proj", "*norm"."""
        return any(fnmatchcase(self.name, pattern) for pattern in patterns)


def trained_weights(
    blocks: Sequence[Block], vocabulary: int, width: int, tied: bool, norm_bias: bool = False
) -> Iterator[tuple[WeightId, tuple[int, int]]]:
    """Yield every weight with its shape (rows, cols), in the order of the file's tensors. A vector is one row.

    `norm_bias`: the last norm has a bias.
    """
    yield WeightId(EMBEDDING), (vocabulary, width)
    if not tied:
        yield WeightId(HEAD), (vocabulary, width)
    yield WeightId(NORM), (1, width)
    if norm_bias:
        yield WeightId(NORM_BIAS), (1, width)
    for layer, block in enumerate(blocks):
        parts, biases = block.parts.values(), {f"{name.removesuffix('_proj')}_bias" for name in block.projections}
        stored = {rows.stored for rows in parts}
        for rows in parts:
            size = rows.last - rows.first
            yield WeightId(rows.stored, layer, rows.first), (size, block.projections[rows.stored][1])
            bias = f"{rows.stored.removesuffix('_proj')}_bias"
            if bias in block.vectors:
                yield WeightId(bias, layer, rows.first), (1, size)
        for name, shape in block.projections.items():
            if name not in stored:
                yield WeightId(name, layer), shape
                if (bias := f"{name.removesuffix('_proj')}_bias") in block.vectors:
                    yield WeightId(bias, layer), (1, shape[0])
        for name, sizes in block.vectors.items():
            if name not in biases:
                yield WeightId(name, layer), (1, prod(sizes))
