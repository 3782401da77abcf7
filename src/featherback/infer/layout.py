"""The memory layouts of a decoder, from the fastest to the smallest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from featherback.methods.memory.plan import Storage, Weights

CHUNK, MLP_TILE = 256, 512


@dataclass(frozen=True)
class Layout:
    """The choices that trade a decoder's memory against time. They change the logits only by rounding."""

    weights: Weights = "resident"
    """How layers are read. All but "resident" also read the adapter again in every pass."""
    cache: Storage = "ram"
    """Where keys and values are stored, and the residual streams of a long prompt. "file": only two pieces of the cache
    and one chunk are in memory, whatever the length of the text."""
    chunk: int = CHUNK
    """Tokens of a prompt that pass a layer together. It bounds the activations, not the prompt's length."""
    mlp_tile: int | None = MLP_TILE
    """Columns of the MLP computed at a time for long inputs. None: all columns, each matrix mapped separately."""
    vocab_tile: int | None = None
    """Rows of the head computed at a time. None: all."""

    @property
    def is_resident(self) -> bool:
        """Whether all weights stay in memory."""
        return self.weights == "resident"


_SMALLER: tuple[tuple[int, int | None, int], ...] = ((CHUNK, MLP_TILE, 1024), (64, 256, 256), (8, None, 256))
"""(chunk, MLP tile, vocabulary tile) of layouts that do not keep the weights in memory, the fastest first."""


def layouts(weights: Weights | None = None) -> Iterator[Layout]:
    """Yield all layouts, the fastest first. `weights`: only layouts that read the weights in this way."""
    if weights in (None, "resident"):
        yield Layout()
        yield Layout(cache="file")
    ways: tuple[Weights, ...] = ("paged", "by_matrix") if weights is None else (weights,)
    places: tuple[Storage, ...] = ("ram", "file")
    for way, place, sizes in product(ways, places, _SMALLER):
        if way != "resident":
            yield Layout(way, place, *sizes)
