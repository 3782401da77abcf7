"""How a decoder lays out its memory, and what each layout takes, counted by running the decoder on shapes alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from featherback.methods.memory.plan import Place, Weights

CHUNK, MLP_TILE = 256, 512


@dataclass(frozen=True)
class Layout:
    """The choices that trade a decoder's memory against time. They change the logits by rounding at most."""

    weights: Weights = "resident"
    """Where layers are read from. All but "resident" read the adapter again for every pass, too."""
    cache: Place = "ram"
    """Where keys and values wait. "file": only those of the layer in use are in memory."""
    chunk: int = CHUNK
    """Tokens of a prompt that pass the layers together: bounds the activations, not the prompt."""
    mlp_tile: int | None = MLP_TILE
    """Columns of the MLP at a time, where many tokens pass together; None: all, each matrix mapped by itself."""
    vocab_tile: int | None = None
    """Rows of the head at a time; None: all."""

    @property
    def is_resident(self) -> bool:
        """Whether all weights stay in memory."""
        return self.weights == "resident"


_SMALLER: tuple[tuple[int, int | None, int], ...] = ((CHUNK, MLP_TILE, 1024), (64, 256, 256), (8, None, 256))
"""(chunk, MLP tile, vocabulary tile) of decoders that do not keep the weights in memory, the fastest first."""


def layouts(weights: Weights | None = None) -> Iterator[Layout]:
    """All layouts, the fastest first. `weights`: those that read them in this way only."""
    if weights in (None, "resident"):
        yield Layout()
    ways: tuple[Weights, ...] = ("paged", "by_matrix") if weights is None else (weights,)
    places: tuple[Place, ...] = ("ram", "file")
    for way, place, sizes in product(ways, places, _SMALLER):
        if way != "resident":
            yield Layout(way, place, *sizes)
