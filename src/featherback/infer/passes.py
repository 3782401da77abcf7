"""Run tokens through a model's blocks and head without a backward pass: on the CPU, or on a counting device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from featherback.engine.backend.protocol import Array, Backend, Scratch, TokenStore
from featherback.infer.layout import Layout
from featherback.methods.assembly import Adapter, blocks_of, layer_weights
from featherback.methods.memory.resources import WeightSource
from featherback.models.model import Model
from featherback.nn.block import Block
from featherback.nn.branch import Remembered
from featherback.nn.context import Context
from featherback.nn.linear import BlockWeights
from featherback.nn.span import Span

FEW = 16
"""Up to this many tokens, the MLP computes all its columns at once."""


class Cache(Protocol):
    """The state that the branches of each layer carry from token to token: keys and values, or recurrent states."""

    def layer(self, ctx: Context, index: int, span: Span) -> AbstractContextManager[Sequence[Any]]:
        """Provide the carry of each branch of a layer for all tokens before `span`; the block adds those of `span`."""

    def close(self) -> None:
        """Free the memory or disk space."""


class RAMCache:
    """A cache that is all in memory. `empty` allocates an array of the given shape."""

    def __init__(self, blocks: Sequence[Block], capacity: int, empty: Callable[[tuple[int, int]], Array]) -> None:
        self._layers = [
            [
                branch.resumed({name: empty(about.shape(capacity)) for name, about in branch.remembered.items()})
                for branch in block.branches
            ]
            for block in blocks
        ]

    def layer(self, ctx: Context, index: int, span: Span) -> AbstractContextManager[Sequence[Any]]:
        return nullcontext(self._layers[index])

    def close(self) -> None:
        self._layers.clear()


class CacheSlot(NamedTuple):
    """Where a cached array is stored while other layers are in use."""

    name: str
    about: Remembered
    store: TokenStore
    slot: int


class FileCache:
    """A cache with only the layer in use in memory. `store` creates a store from (slots, rows, columns)."""

    def __init__(self, blocks: Sequence[Block], capacity: int, store: Callable[[int, int, int], TokenStore]) -> None:
        branches = [branch for block in blocks for branch in block.branches]
        shapes = Counter(about.shape(capacity) for branch in branches for about in branch.remembered.values())
        self._stores = {shape: store(times, *shape) for shape, times in shapes.items()}
        slots = {shape: count() for shape in shapes}

        def assign(name: str, about: Remembered) -> CacheSlot:
            shape = about.shape(capacity)
            return CacheSlot(name, about, self._stores[shape], next(slots[shape]))

        self._layers = [
            [(branch, [assign(*item) for item in branch.remembered.items()]) for branch in block.branches]
            for block in blocks
        ]

    @contextmanager
    def layer(self, ctx: Context, index: int, span: Span) -> Iterator[Sequence[Any]]:
        past = span.start
        with ctx.frame():
            carry, waiting = [], list[tuple[CacheSlot, Array]]()
            for branch, cached in self._layers[index]:
                arrays = {each.name: ctx.floats(each.name, *each.about.shape(span.stop)) for each in cached}
                waiting += zip(cached, arrays.values())
                carry.append(branch.resumed(arrays))
            if past:
                for (_, about, store, slot), array in waiting:
                    store.load(slot, array if about.rows else array[:past], 0)
            yield carry
            for (_, about, store, slot), array in waiting:
                first, changed = (0, array) if about.rows else (past, array[span.own])
                store.save(slot, changed, first, changed)

    def close(self) -> None:
        for store in self._stores.values():
            store.close()


@dataclass(frozen=True)
class Machine:
    """What every pass needs: the model, a device with scratch memory, and the weights."""

    model: Model
    compute: str
    layout: Layout
    backend: Backend
    scratch: Scratch
    weights: WeightSource

    def context(self, span: Span) -> Context:
        """Return the context of a pass."""
        tile = None if span.tokens <= FEW else self.layout.mlp_tile
        return Context(
            self.backend,
            self.scratch,
            self.compute,
            span,
            mlp_tile=tile or self.model.config.widest_unit,
            vocab_tile=self.layout.vocab_tile or self.model.head.weight.rows,
            decoding=True,
            release=self.weights.release,
            release_expert=self.weights.release_expert,
            expect=self.weights.expect,
        )

    @contextmanager
    def embedded(self, ids: NDArray[np.int32], span: Span) -> Iterator[tuple[Context, Array]]:
        """Yield a context of the span and its residual stream (T, D), the embedding of `ids` (T,)."""
        with self.context(span).at(span, self.model.rotaries) as ctx:
            x = ctx.floats("residual stream", span.tokens, self.model.config.hidden_size)
            self.weights.gather(self.model.embed_tokens, ids, x)
            if self.model.embedding_scale != 1:
                ctx.ops.scale(x, self.model.embedding_scale)
            yield ctx, x


class Passes:
    """A decoder's working parts: a device and its memory, the weights and the cache."""

    def __init__(
        self,
        model: Model,
        adapter: Adapter | None,
        compute: str,
        layout: Layout,
        backend: Backend,
        scratch: Scratch,
        held: Scratch,
        weights: WeightSource,
        cache: Cache,
        prepared: Sequence[Array],
    ) -> None:
        """`held`: memory for the adapter's factors if the layout is resident. `prepared`: an array per layer for the
        adapter's prepared values; empty if it has none."""
        self._machine = Machine(model, compute, layout, backend, scratch, weights)
        self._model, self._adapter, self._weights, self._cache = model, adapter, weights, cache
        self._prepared = prepared
        self._open = ExitStack()
        self._layers: list[BlockWeights] = []
        for index in range(len(prepared)):
            ctx = Context(backend, scratch, compute, Span.following(0, 1, 1), release=weights.release)
            with self._assembled(ctx, index, ready=False):
                pass
        if layout.is_resident:
            ctx = Context(backend, held, compute, Span.following(0, 1, 1))
            self._layers = [self._open.enter_context(self._assembled(ctx, index)) for index in range(len(model.blocks))]

    def logits(self, ids: NDArray[np.int32], span: Span, out: Array) -> None:
        """Run the tokens of `span` (T,). Writes `out` (T, V): their logits."""
        with self._through(ids, span) as (ctx, x):
            self._model.head.logits(ctx, x, self._weights, out)

    def last_logits(self, ids: NDArray[np.int32], span: Span, out: Array) -> None:
        """Run the tokens of `span` (T,). Writes `out` (1, V): the logits of the last token."""
        with self._through(ids, span) as (ctx, x):
            self._model.head.logits(ctx, x[-1:], self._weights, out)

    def hidden(self, ids: NDArray[np.int32], span: Span, out: Array) -> None:
        """Run the tokens of `span` (T,). Writes `out` (T, D), float32: the hidden states after the final norm."""
        with self._through(ids, span) as (ctx, x):
            self._model.head.states(ctx, x, out)

    @contextmanager
    def _through(self, ids: NDArray[np.int32], span: Span) -> Iterator[tuple[Context, Array]]:
        """Yield a context of the span, and the residual stream (T, D) after all blocks."""
        with self._machine.embedded(ids, span) as (ctx, x):
            for index, block in enumerate(blocks_of(self._model, self._adapter)):
                with self._layer(ctx, index) as w, self._cache.layer(ctx, index, span) as carry:
                    block.forward(ctx, x, w, carry)
            yield ctx, x

    def close(self) -> None:
        """Free the weights and the cache, and close their files."""
        self._layers.clear()
        self._open.close()
        self._weights.close()
        self._cache.close()

    def _layer(self, ctx: Context, index: int) -> AbstractContextManager[BlockWeights]:
        return nullcontext(self._layers[index]) if self._layers else self._assembled(ctx, index)

    def _assembled(self, ctx: Context, index: int, *, ready: bool = True) -> AbstractContextManager[BlockWeights]:
        prepared = self._prepared[index] if self._prepared else None
        fixed = None if self._adapter is None else self._adapter.measured
        return layer_weights(
            ctx, self._weights, index, index + 1, self._adapter, prepared=prepared, fixed=fixed, ready=ready
        )
