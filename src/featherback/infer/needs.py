"""Predict a decoder's memory by running its passes on a device that only counts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from featherback.engine import kernels
from featherback.engine.backend.counting import Blank, Counting, Ledger
from featherback.engine.budget import Budget
from featherback.infer.cache import FLOAT, FileCache, RAMCache, cache_bytes
from featherback.infer.key_cache import EXACT
from featherback.infer.layout import Layout, layouts
from featherback.infer.passes import FEW, Passes
from featherback.methods.assembly import blocks_of
from featherback.methods.memory.dry_run import BlankAdapter, BlankWeights, NoStore
from featherback.methods.memory.plan import Weights
from featherback.methods.memory.planner import STACK
from featherback.methods.memory.stored import StoredSizes
from featherback.models.adapter import Adapter
from featherback.models.model import Model

CODE = 1_000_000
"""Bytes for the decoding code and the allocator's overhead, on top of the counted bytes."""


@dataclass(frozen=True)
class Needs:
    """The most bytes that a decoder holds."""

    scratch: int
    """Bytes of the scratch arena."""
    held: int
    """Bytes of the adapter's factors, which a resident decoder keeps for all layers."""
    beside: int
    """Bytes of streamed weights, converted norms, the adapter's prepared values, per-thread buffers and the logits."""
    cache: int
    """Bytes of the full cache and of the residual stream of a whole prompt, if they are in memory."""
    weights: int
    """Bytes of the model's file that are mapped."""

    @property
    def total(self) -> int:
        """Sum of all parts."""
        return self.scratch + self.held + self.beside + self.cache + self.weights

    @classmethod
    def of(
        cls, sizes: StoredSizes, backend: Counting, layout: Layout, scratch: Ledger, held: Ledger, logits: int,
        prepared: int = 0, cache: int = 0,
    ) -> Needs:  # fmt: skip
        """Return the needs of passes that were counted. `logits`: rows that are returned at a time. `prepared`: bytes
        of the adapter's prepared values.
        """
        tile = layout.vocab_tile or sizes.head.rows
        threads = kernels.threads() * (backend.ops.work.thread_scratch + STACK)
        rows = logits * sizes.config.vocab_size * FLOAT.itemsize
        return cls(
            scratch=scratch.high_water,
            held=held.high_water,
            beside=sizes.private_bytes(layout.weights, tile) + threads + prepared + rows,
            cache=cache,
            weights=sizes.resident(layout.weights, tile, backend.ops.most_mapped),
        )


class NoFile:
    """A file that drops what is written."""

    def write(self, values: Any, offset: int) -> None:
        """Do nothing."""

    def read(self, out: Any, offset: int) -> None:
        """Do nothing."""

    def start(self, read: Any) -> NoFile:
        """Do nothing."""
        return self

    def result(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def rows_of_logits(guesses: int) -> int:
    """Return the rows of logits in memory if a pass checks so many guesses: those of this pass and of the last one."""
    return 2 * (1 + guesses) if guesses else 1


def needs(
    model: Model, adapter: Adapter | None, capacity: int, compute: str, layout: Layout, kv: str = EXACT, logits: int = 1
) -> Needs:
    """Return the memory of a decoder with `capacity` tokens, and with at most `logits` rows of logits at a time."""
    sizes = StoredSizes.of(model)
    backend, scratch, held = Counting(compute, layout.is_fast, decoding=True), Ledger(), Ledger()
    blank = None if adapter is None else BlankAdapter(adapter.layout, draws=False)
    blocks = blocks_of(model, adapter)
    cache = (
        RAMCache(blocks, capacity, kv, Blank)
        if layout.cache == "ram"
        else FileCache(blocks, capacity, kv, lambda _: NoFile(), lambda *_: NoStore())
    )
    held_outside = 0
    if layout.cache == "ram":
        stream = capacity * model.config.hidden_size * FLOAT.itemsize if capacity > layout.chunk else 0
        held_outside = cache_bytes(blocks, capacity, kv) + stream
    weights: Any = BlankWeights(sizes, range(len(model.blocks)), backend)
    size = 0 if adapter is None else adapter.layout.prepared.size
    prepared = [Blank((size,), FLOAT)] * len(model.blocks) if size else []
    passes = Passes(
        model, blank, compute, layout, backend, scratch, held, weights, cache, prepared, lambda _: NoStore()
    )
    for count in {min(capacity, FEW), min(capacity, layout.chunk), capacity}:
        out: Any = Blank((min(count, layout.chunk), model.config.vocab_size), FLOAT)
        passes.logits(np.zeros(count, np.int32), capacity - count, capacity, out)
    of_adapter = sum(each.nbytes for each in prepared)
    return Needs.of(sizes, backend, layout, scratch, held, logits, of_adapter, held_outside)


def fitting(
    model: Model, adapter: Adapter | None, capacity: int, compute: str, budget: Budget, weights: Weights | None = None,
    kv: str = EXACT, decode: str = "exact",
) -> Layout:  # fmt: skip
    """Return the fastest layout that fits in the budget.

    Raises BudgetError if even the smallest does not fit.

    `weights`: how the run that uses the decoder reads its weights. Streamed weights do not fit in the page cache.
    """
    if (room := budget.room) is None:
        return next(layouts("streamed" if weights == "streamed" else None, decode))
    fewest = sys.maxsize
    for layout, needed in _choices(model, adapter, capacity, compute, weights, kv, decode):
        if needed <= room:
            return layout
        fewest = min(fewest, needed)
    budget.ask(fewest, "The smallest decoder")
    return layout


def smallest(
    model: Model, adapter: Adapter | None, capacity: int, compute: str, weights: Weights | None = None,
    kv: str = EXACT, decode: str = "exact",
) -> Layout:  # fmt: skip
    """Return the layout that needs the least memory. The arguments are those of `fitting`."""
    return min(_choices(model, adapter, capacity, compute, weights, kv, decode), key=lambda choice: choice[1])[0]


def _choices(
    model: Model, adapter: Adapter | None, capacity: int, compute: str, weights: Weights | None, kv: str, decode: str
) -> Iterator[tuple[Layout, int]]:
    """Yield each layout with the bytes that it needs, the fastest first."""
    capacity = min(capacity, model.config.max_position_embeddings)
    for layout in layouts("streamed" if weights == "streamed" else None, decode):
        yield layout, needs(model, adapter, capacity, compute, layout, kv).total + CODE
