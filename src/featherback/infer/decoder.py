"""A decoder for generation: one pass over the layers per call, what branches remember of earlier tokens cached."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from featherback.engine import backend, kernels
from featherback.engine.backend.protocol import Backend
from featherback.engine.host.checkpoints import Checkpoints
from featherback.engine.host.maps import MapWatch
from featherback.engine.host.scattered import check_ids
from featherback.errors import FeatherbackError
from featherback.infer.layout import Layout
from featherback.infer.needs import Needs, needs
from featherback.infer.passes import Cache, FileCache, Passes, RAMCache
from featherback.methods.memory.resources import source
from featherback.models.lora import Adapter
from featherback.models.model import Model
from featherback.nn.span import Span

Float32 = NDArray[np.float32]


class Decoder:
    """T tokens in, logits out. The cache grows to `capacity` tokens; its memory is only taken as it fills.

    A resident decoder copies an adapter's parameters at the start, so later training does not show here; others read
    them for every pass. Where rotary embedding depends on a text's length (LongRoPE), the cache is computed again when
    the text outgrows the original context, as transformers does.
    """

    def __init__(
        self,
        model: Model,
        adapter: Adapter | None = None,
        capacity: int | None = None,
        compute: str = "bf16",
        layout: Layout = Layout(),  # noqa: B008 - it cannot change
        folder: Path | None = None,
    ) -> None:
        """`folder`: for a cache in a file."""
        kernels.check_compute(compute)
        c = model.config
        self.model, self.compute, self.layout = model, compute, layout
        self.capacity = min(capacity or c.max_position_embeddings, c.max_position_embeddings)
        self.tokens: list[int] = []  # what the cache holds
        self._has_states = any(about.rows is not None for block in model.blocks for about in block.remembered)
        self._stretched: list[bool] = []  # by rotation: whether its keys are turned as a long text's
        self._maps = MapWatch(model.files, model.close)
        self.needs: Needs = needs(model, adapter, self.capacity, compute, layout)
        self._device = device = backend.of(compute)
        size = 0 if adapter is None else adapter.layout.prepared.size
        prepared = [device.arena(4 * size).take("prepared", (size,)) for _ in model.blocks] if size else []
        self.arenas = scratch, held = device.arena(self.needs.scratch), device.arena(self.needs.held)
        weights = source(model, device, layout.weights, layout.vocab_tile or model.head.weight.rows)
        cache = self._cache(device, folder)
        self._passes = Passes(model, adapter, compute, layout, device, scratch, held, weights, cache, prepared)

    def forward(self, tokens: Sequence[int], every: bool = False, check: Callable[[], None] | None = None) -> Float32:
        """Append `tokens` to the cache. Logits of the last one (vocab,), or of all (T, vocab) if `every`.

        `check` is called before each chunk of the prompt; what it raises leaves the cache with the tokens so far.
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
        size = self.layout.chunk
        with self._maps as maps:
            parts = []
            for at in range(0, len(tokens), size):
                if check is not None:
                    check()
                parts.append(self._pass(tokens[at : at + size], every, length))
            maps.check()
        return np.concatenate(parts)[-asked:] if every else parts[-1][-1]

    def rewind(self, count: int) -> int:
        """Keep the first `count` tokens of the cache, none if it holds a state after all of them; returns how many."""
        count = 0 if self._has_states and count < len(self.tokens) else count
        del self.tokens[count:]
        return count

    def close(self) -> None:
        """Give the memory back, and close files."""
        self._passes.close()
        del self._passes, self.arenas  # whoever still has the decoder does not hold them

    def _pass(self, tokens: Sequence[int], every: bool, length: int) -> Float32:
        ids = np.asarray(tokens, np.int32)
        span = Span.following(len(self.tokens), ids.size, length)
        logits = np.empty((ids.size if every else 1, self.model.config.vocab_size), np.float32)
        try:
            with self._device.held(logits, changing=True) as out:
                self._passes.run(ids, span, every, out)
        except BaseException:
            if self._has_states:  # how far they have come is not known
                self.tokens.clear()
            raise
        self.tokens.extend(ids.tolist())
        return logits

    def _cache(self, device: Backend, folder: Path | None) -> Cache:
        blocks, float32 = self.model.blocks, np.dtype(np.float32)
        if self.layout.cache == "ram":
            return RAMCache(
                blocks, self.capacity, lambda shape: device.arena(4 * math.prod(shape)).take("cache", shape)
            )
        assert folder is not None
        return FileCache(
            blocks, self.capacity, lambda slots, rows, width: Checkpoints(device, slots, rows, width, float32, folder)
        )
