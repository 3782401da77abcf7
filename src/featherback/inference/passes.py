"""Tokens on their way through a model's blocks and head, without a backward pass: on the CPU, or counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from featherback.backend.protocol import Array, Backend, Scratch
from featherback.inference.layout import Layout
from featherback.layers.attention import KeyValues
from featherback.layers.block import Block
from featherback.layers.context import Context
from featherback.layers.linear import BlockWeights
from featherback.layers.span import Span
from featherback.memory.resources import TokenStore, WeightSource
from featherback.methods.assembly import Adapter, layer_weights
from featherback.models.model import Model

FEW = 8
"""Tokens that may take the MLP's whole width at a time."""


class Cache(Protocol):
    """Keys and values of all tokens so far, layer by layer."""

    def layer(self, ctx: Context, index: int, block: Block, span: Span) -> AbstractContextManager[KeyValues]:
        """Those of a layer, up to the last token of the span, whose own rows are written inside."""


class RAMCache:
    """All of them in memory."""

    def __init__(self, layers: Sequence[KeyValues]) -> None:
        self._layers = layers

    def layer(self, ctx: Context, index: int, block: Block, span: Span) -> AbstractContextManager[KeyValues]:
        return nullcontext(self._layers[index])


class FileCache:
    """In memory only those of the layer in use. `stores`: by width, with two slots for each layer."""

    def __init__(self, stores: dict[int, TokenStore]) -> None:
        self._stores = stores

    @contextmanager
    def layer(self, ctx: Context, index: int, block: Block, span: Span) -> Iterator[KeyValues]:
        width = block.attention.kv_size
        store, past = self._stores[width], span.start
        with ctx.frame():
            arrays = {2 * index + i: ctx.floats(name, span.stop, width) for i, name in enumerate("kv")}
            if past:
                for slot, array in arrays.items():
                    store.load(slot, array[:past], 0)
            yield KeyValues(*arrays.values())
            for slot, array in arrays.items():
                store.save(slot, array[span.own], past, array[span.own])


class Passes:
    """What a decoder computes with: a device and its memory, the weights, the cache."""

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
        """`held`: memory for what stays of a resident model's layers. `prepared`: room for what the adapter
        prepares of each layer, or none."""
        self._model, self._adapter, self._compute, self._layout = model, adapter, compute, layout
        self._backend, self._scratch, self._weights, self._cache = backend, scratch, weights, cache
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

    def run(self, ids: NDArray[np.int32], span: Span, every: bool, logits: Array) -> None:
        """The tokens of `span` (T,) pass; `logits` (1, V) become those of the last one, or (T, V) of `every` one."""
        model = self._model
        tile = None if span.tokens <= FEW else self._layout.mlp_tile
        context = Context(
            self._backend,
            self._scratch,
            self._compute,
            span,
            mlp_tile=tile or model.config.intermediate_size,
            vocab_tile=self._layout.vocab_tile or model.head.weight.rows,
            decoding=True,
            release=self._weights.release,
        )
        with context.at(span, model.rotaries) as ctx:
            x = ctx.floats("residual stream", span.tokens, model.config.hidden_size)
            self._weights.gather(model.embed_tokens, ids, x)
            if model.embedding_scale != 1:
                ctx.ops.scale(x, model.embedding_scale)
            for index, block in enumerate(model.blocks):
                with self._layer(ctx, index) as w, self._cache.layer(ctx, index, block, span) as kv:
                    block.forward(ctx, x, w, kv)
            model.head.logits(ctx, x if every else x[-1:], self._weights, logits)

    def close(self) -> None:
        """Give back what is held of the weights, and close their files."""
        self._layers.clear()
        self._open.close()
        self._weights.close()

    def _layer(self, ctx: Context, index: int) -> AbstractContextManager[BlockWeights]:
        return nullcontext(self._layers[index]) if self._layers else self._assembled(ctx, index)

    def _assembled(self, ctx: Context, index: int, *, ready: bool = True) -> AbstractContextManager[BlockWeights]:
        prepared = self._prepared[index] if self._prepared else None
        fixed = None if self._adapter is None else self._adapter.measured
        return layer_weights(
            ctx, self._weights, index, index + 1, self._adapter, prepared=prepared, fixed=fixed, ready=ready
        )
