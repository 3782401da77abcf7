"""Run tokens through a model's blocks and head without a backward pass: on the CPU, or on a counting device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from featherback.engine.backend.protocol import Array, Backend, Scratch, TokenStore
from featherback.infer.cache import Cache
from featherback.infer.layout import Layout
from featherback.methods.assembly import Adapter, blocks_of, layer_weights
from featherback.methods.memory.resources import WeightSource
from featherback.models.model import Model
from featherback.nn.context import Context
from featherback.nn.linear import BlockWeights
from featherback.nn.span import Span

Check = Callable[[], None]
"""Called between chunks; it may raise."""
Finish = Callable[[Context, Array, Array], None]
"""Computes the output (n, width) of rows x (n, D) of the residual stream after all blocks."""
FEW = 4
"""Up to this many tokens of a sequence are computed as next tokens: products and attention have kernels for few rows,
and the MLP computes all its columns at once. More are a part of a prompt. A token has the same bits whatever else is in
its pass, and wherever `piece` divides a prompt."""
GRAIN = 32
"""Tokens that recurrent kernels compute together, a multiple of what others do."""


def piece(pending: int, most: int) -> int:
    """Return how many of a prompt's `pending` tokens a pass computes if it has room for `most`.

    All of them, or a multiple of `GRAIN`, so that it does not matter where a prompt is divided. A part of `FEW` tokens
    or less is not left for the next pass, because it would be computed row by row.
    """
    if pending <= most:
        return pending
    count = most - most % GRAIN or most
    return count - GRAIN if pending - count <= FEW and count > GRAIN else count


def go_on() -> None:
    """Do not stop."""


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
        few = int(np.diff(span.cu_q).max()) <= FEW
        tile = None if few else self.layout.mlp_tile
        return Context(
            self.backend,
            self.scratch,
            self.compute,
            span,
            mlp_tile=tile or self.model.config.widest_unit,
            vocab_tile=self.layout.vocab_tile or self.model.head.weight.rows,
            decoding=True,
            few=few,
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

    @contextmanager
    def loaded(self, store: TokenStore, span: Span, first: int) -> Iterator[tuple[Context, Array]]:
        """Yield a context of the span and its residual stream (T, D), the rows of a store from `first` on."""
        with self.context(span).at(span, self.model.rotaries) as ctx:
            x = ctx.floats("residual stream", span.tokens, self.model.config.hidden_size)
            store.load(0, x, first)
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
        stream: Callable[[int], TokenStore],
    ) -> None:
        """`held`: memory for the adapter's factors if the layout is resident. `prepared`: an array per layer for the
        adapter's prepared values; empty if it has none. `stream`: creates a store for so many rows (T, D)."""
        self._machine = Machine(model, compute, layout, backend, scratch, weights)
        self._model, self._adapter, self._weights, self._cache = model, adapter, weights, cache
        self._prepared, self._stream = prepared, stream
        self._open = ExitStack()
        self._layers: list[BlockWeights] = []
        for index in range(len(prepared)):
            ctx = Context(backend, scratch, compute, Span.following(0, 1, 1), few=False, release=weights.release)
            with self._assembled(ctx, index, ready=False):
                pass
        if layout.is_resident:
            ctx = Context(backend, held, compute, Span.following(0, 1, 1))
            self._layers = [self._open.enter_context(self._assembled(ctx, index)) for index in range(len(model.blocks))]

    def logits(self, ids: NDArray[np.int32], past: int, length: int, out: Array, check: Check = go_on) -> None:
        """Run the tokens `ids` (T,) after the first `past` of a text of `length`; out (n, V) = logits of the last n."""

        def write(ctx: Context, x: Array, rows: Array) -> None:
            self._model.head.logits(replace(ctx, few=len(x) <= FEW), x, self._weights, rows)

        self._run(ids, past, length, out, write, check)

    def hidden(self, ids: NDArray[np.int32], past: int, length: int, out: Array, check: Check = go_on) -> None:
        """Like `logits`, but out (n, D), float32 = the hidden states after the final norm."""
        self._run(ids, past, length, out, self._model.head.states, check)

    def _run(
        self, ids: NDArray[np.int32], past: int, length: int, out: Array, finish: Finish, check: Check
    ) -> None:  # fmt: skip
        """Run the tokens in chunks, layer by layer: all chunks pass the first layer, then the second, and so on.

        So the weights of a layer are read once. Between layers, the residual streams of several chunks are in a store.
        """
        machine = self._machine
        spans, stop = list[Span](), past + len(ids)
        while (at := spans[-1].stop if spans else past) < stop:
            spans.append(Span.following(at, piece(stop - at, machine.layout.chunk), length))
        blocks, first = blocks_of(self._model, self._adapter), stop - len(out)

        def write(ctx: Context, x: Array) -> None:
            at = max(first, ctx.span.start)
            finish(ctx, x[at - ctx.span.start :], out[at - first : ctx.span.stop - first])

        if len(spans) == 1:
            check()
            with machine.embedded(ids, spans[0]) as (ctx, x):
                for index, block in enumerate(blocks):
                    with self._layer(ctx, index) as w, self._cache.layer(ctx, index, spans[0]) as carry:
                        block.forward(ctx, x, w, carry)
                write(ctx, x)
            return
        with closing(self._stream(len(ids))) as stream:
            for span in machine.backend.each(spans):
                with machine.embedded(ids[span.start - past : span.stop - past], span) as (_, x):
                    stream.save(0, x, span.start - past, x)
            for index, block in enumerate(blocks):
                with self._layer(machine.context(spans[0]), index) as w:
                    for span in machine.backend.each(spans):
                        check()
                        with machine.loaded(stream, span, span.start - past) as (ctx, x):
                            with self._cache.layer(ctx, index, span) as carry:
                                block.forward(ctx, x, w, carry)
                            stream.save(0, x, span.start - past, x)
            for span in machine.backend.each([span for span in spans if span.stop > first]):
                with machine.loaded(stream, span, span.start - past) as (ctx, x):
                    write(ctx, x)

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
