"""A decoder for generation: one pass over the layers per call, keys and values cached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback import kernels
from featherback.adapters.lora import LoRA, squared_rows
from featherback.backend.counting import Blank, Counting
from featherback.backend.cpu import CPU
from featherback.backend.protocol import Backend, Scratch
from featherback.errors import FeatherbackError
from featherback.host.maps import MapWatch
from featherback.host.scattered import check_ids
from featherback.layers.attention import KeyValues
from featherback.layers.context import Context
from featherback.layers.dora import weighed
from featherback.layers.linear import BlockWeights
from featherback.layers.span import Span
from featherback.methods.base import block_weights
from featherback.models.facts import matrices
from featherback.models.model import Model

CHUNK = 256  # tokens of a prompt that pass the layers together: bounds the activations, not the prompt
MLP_TILE = 512  # columns of the MLP at a time, where many tokens pass together
FEW = 8  # tokens that may take the MLP's whole width at a time

Float32 = NDArray[np.float32]


class Decoder:
    """T tokens in, logits out. The cache grows to `capacity` tokens; its memory is only taken as it fills.

    An adapter's parameters are copied at the start, so later training does not show here. Where rotary embedding
    depends on a text's length (LongRoPE), the cache is computed again when the text outgrows the original context, as
    transformers does.
    """

    def __init__(
        self,
        model: Model,
        adapter: LoRA | None = None,
        capacity: int | None = None,
        compute: str = "bf16",
    ) -> None:
        kernels.check_compute(compute)
        c = model.config
        self.model, self.compute = model, compute
        self.capacity = min(capacity or c.max_position_embeddings, c.max_position_embeddings)
        self.tokens: list[int] = []  # what the cache holds
        self._stretched: list[bool] = []  # by rotation: whether its keys are turned as a long text's
        self._maps = MapWatch(model.files, model.close)
        self._backend = CPU(compute)
        self._layers = [_weights(self._backend, model, adapter, i) for i in range(c.num_hidden_layers)]
        self._embed = kernels.matrix(model.embed_tokens)
        self._cache = [
            KeyValues(*(np.empty((self.capacity, block.attention.kv_size), np.float32) for _ in range(2)))
            for block in model.blocks
        ]
        self._scratch_bytes = self._most_scratch()
        self._scratch = self._backend.arena(self._scratch_bytes)  # pages come when written

    def forward(
        self, tokens: Sequence[int], every: bool = False, check: Callable[[], None] | None = None
    ) -> Float32:
        """Append `tokens` to the cache. Logits of the last one (vocab,), or of all (T, vocab) if `every`.

        `check` is called before each CHUNK; what it raises leaves the cache with the tokens so far.
        FeatherbackError if the cache would overflow, for an id that the embedding does not have, or if the model's file
        is cut short.
        """
        if not tokens:
            raise FeatherbackError("There is no token to read.")
        check_ids(np.asarray(tokens, np.int64), self.model.embed_tokens.rows)
        length = len(self.tokens) + len(tokens)
        if length > self.capacity:
            raise FeatherbackError(f"The text has {length} tokens; there is room for {self.capacity}.")
        self.model.check_open()
        asked = len(tokens)
        stretched = [rotary.stretches(length) for rotary in self.model.rotaries]
        if self.tokens and stretched != self._stretched:
            tokens = [*self.tokens, *tokens]
            self.rewind(0)
        self._stretched = stretched
        starts = range(0, len(tokens), CHUNK)
        with self._maps as maps:
            parts = []
            for at in starts:
                if check is not None:
                    check()
                parts.append(self._pass(tokens[at : at + CHUNK], every, length))
            maps.check()
        return np.concatenate(parts)[-asked:] if every else parts[-1][-1]

    @property
    def nbytes(self) -> int:
        """Bytes that it comes to hold at most: mapped weights once they are read, a full cache, scratch."""
        weights = sum(matrix.nbytes for matrix in matrices(self.model))
        cache = sum(array.nbytes for kv in self._cache for array in (kv.k, kv.v))
        return weights + cache + self._scratch_bytes

    def rewind(self, count: int) -> None:
        """Keep only the first `count` tokens of the cache."""
        del self.tokens[count:]

    def _pass(self, tokens: Sequence[int], every: bool, length: int) -> Float32:
        ids = np.asarray(tokens, np.int32)
        span = Span.following(len(self.tokens), ids.size, length)
        with self._context(self._backend, self._scratch, span).at(span, self.model.rotaries) as ctx:
            x = self._stream(ctx)
            kernels.gather_rows(self._embed, ids, x)
            self._blocks(ctx, x, self._cache)
            last = x if every else x[-1:]
            logits = np.empty((len(last), self.model.config.vocab_size), np.float32)
            self.model.head.logits(ctx, last, logits)
        self.tokens.extend(ids.tolist())
        return logits

    def _stream(self, ctx: Context) -> Any:
        """The residual stream (T, D), uninitialised."""
        return ctx.floats("residual stream", ctx.tokens, self.model.config.hidden_size)

    def _blocks(self, ctx: Context, x: Any, cache: Sequence[KeyValues]) -> None:
        """The embeddings x (T, D) go through all blocks in place."""
        if self.model.embedding_scale != 1:
            ctx.ops.scale(x, self.model.embedding_scale)
        for block, weights, kv in zip(self.model.blocks, self._layers, cache, strict=True):
            block.forward(ctx, x, weights, kv)

    def _context(self, backend: Backend, scratch: Scratch, span: Span) -> Context:
        columns = self.model.config.intermediate_size if span.tokens <= FEW else MLP_TILE
        return Context(backend, scratch, self.compute, span, mlp_tile=columns, decoding=True)

    def _most_scratch(self) -> int:
        """Bytes of scratch for the longest chunk, and for the most tokens that take the MLP's whole width at once."""
        backend = Counting(self.compute)
        for count in (FEW, CHUNK):
            span, scratch = Span.following(self.capacity, count, self.capacity), backend.arena(0)
            shape, float32 = (self.capacity + count, 1), np.dtype(np.float32)
            cache = [KeyValues(Blank(shape, float32), Blank(shape, float32))] * len(self.model.blocks)
            with self._context(backend, scratch, span).at(span, self.model.rotaries) as ctx:
                x = self._stream(ctx)
                self._blocks(ctx, x, cache)
                self.model.head.logits(ctx, x, Blank((count, self.model.config.vocab_size), float32))
        return max(ledger.high_water for ledger in backend.arenas)


def _weights(backend: Backend, model: Model, adapter: LoRA | None, layer: int) -> BlockWeights:
    """A layer's weights with its part of the adapter."""
    if adapter is None:
        return block_weights(backend, model.layer(layer))
    flat = np.empty(adapter.layout.size, np.float32)
    adapter.parameters.read(layer, flat)
    stored, pairs, scales = model.layer(layer), adapter.layout.view(layer, flat), adapter.scales(layer)
    weights = block_weights(backend, stored, pairs, scales)
    if not adapter.form.dora:
        return weights
    squares = {name: squared_rows(stored.matrices[name], pair, scales[name]) for name, pair in pairs.items()}
    return weighed(weights, pairs, {name: pairs[name].m / np.sqrt(n) for name, n in squares.items()}, {})
