"""Where the weights of a model lie that are trained themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from math import prod
from typing import NamedTuple

from featherback.nn.block import Block
from featherback.nn.roles import EMBEDDING, HEAD, MATRIX, NORM, TABLE


class Place(NamedTuple):
    """A trained weight, or those rows of one that a family stores with others."""

    part: str  # "q_proj", "q_bias", "input_layernorm", or one outside the layers
    layer: int | None = None
    first_row: int = 0  # of the stored weight; of a vector, the first element

    def __str__(self) -> str:
        rows = f", from row {self.first_row}" if self.first_row else ""
        return self.part + ("" if self.layer is None else f" of layer {self.layer}") + rows

    @property
    def role(self) -> str:
        """As optimisers know it."""
        return TABLE if self.part in (EMBEDDING, HEAD) else MATRIX

    @property
    def name(self) -> str:
        """As --freeze knows it: "embed_tokens", "layers.3.q_proj"."""
        return self.part if self.layer is None else f"layers.{self.layer}.{self.part}"

    def is_one_of(self, patterns: Sequence[str]) -> bool:
        """Whether a pattern matches its name: "embed_tokens", "layers.3.q_proj", "*norm"."""
        return any(fnmatchcase(self.name, pattern) for pattern in patterns)


def trained_places(
    blocks: Sequence[Block], vocabulary: int, width: int, tied: bool
) -> Iterator[tuple[Place, tuple[int, int]]]:
    """Every weight with its shape (rows, cols), a vector being one row, in the order of the file's parts."""
    yield Place(EMBEDDING), (vocabulary, width)
    if not tied:
        yield Place(HEAD), (vocabulary, width)
    yield Place(NORM), (1, width)
    for layer, block in enumerate(blocks):
        parts = block.parts.values()
        stored = {rows.stored for rows in parts}
        for rows in parts:
            size = rows.last - rows.first
            yield Place(rows.stored, layer, rows.first), (size, block.projections[rows.stored][1])
            bias = f"{rows.stored.removesuffix('_proj')}_bias"
            if bias in block.vectors:
                yield Place(bias, layer, rows.first), (1, size)
        for name, shape in block.projections.items():
            if name not in stored:
                yield Place(name, layer), shape
        for name, sizes in block.vectors.items():
            if not name.endswith("_bias"):
                yield Place(name, layer), (1, prod(sizes))
