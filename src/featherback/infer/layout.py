"""The memory layouts of a decoder, from the fastest to the smallest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from featherback.core.naming import argument_is
from featherback.errors import FeatherbackError, expected
from featherback.methods.memory.plan import Storage, Weights

CHUNK, MLP_TILE = 256, 512
DECODE = EXACT, FAST = "exact", "fast"
"""How tokens are decoded. fast: what the weights multiply is rounded to eight bits, in products of a few rows."""


def check_decode(decode: str) -> None:
    """Raise FeatherbackError if there is no such way of decoding."""
    if decode not in DECODE:
        raise FeatherbackError(f"{argument_is('decode', decode)}; {expected(decode, DECODE)}")


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
    decode: str = EXACT
    """One of `DECODE`."""

    @property
    def is_resident(self) -> bool:
        """Whether all weights stay in memory."""
        return self.weights == "resident"

    @property
    def is_fast(self) -> bool:
        """Whether products of a few rows round these."""
        return self.decode == FAST


_SMALLER: tuple[tuple[int, int | None, int], ...] = ((CHUNK, MLP_TILE, 1024), (64, 256, 256), (8, None, 256))
"""(chunk, MLP tile, vocabulary tile) of layouts that do not keep the weights in memory, the fastest first."""


def layouts(weights: Weights | None = None, decode: str = EXACT) -> Iterator[Layout]:
    """Yield all layouts, the fastest first. `weights`: only layouts that read the weights in this way."""
    if weights in (None, "resident"):
        yield Layout(decode=decode)
        yield Layout(cache="file", decode=decode)
    ways: tuple[Weights, ...] = ("paged", "by_matrix") if weights is None else (weights,)
    places: tuple[Storage, ...] = ("ram", "file")
    for way, place, sizes in product(ways, places, _SMALLER):
        if way != "resident":
            yield Layout(way, place, *sizes, decode)
